"""Whether this node relays for others, and whether it is reached through relays itself.

Both follow from one question: can we be dialled from the internet? We can if a member has dialled
us from there, or probes have reached us (``train.swarm.reach``). Then we relay, within the share of
the upload that the owner lends. Whoever is on the internet and was never dialled is taken for a
machine behind a router: it reserves at members that relay.

State: the present rate that is lent. It runs beside the node for as long as that takes part.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Final

import trio

from client.config import lent_bytes_per_s
from client.control.snapshot import RelayView
from client.train.engine import Engine
from protocol.effects import Explain
from protocol.ids import PeerId, rank, short
from protocol.membership.view import Member
from protocol.pace import TICK_S

PATIENCE_S: Final = 5.0
"""Seconds on the internet, as a member, within which others dial whoever can be dialled."""
CANDIDATES: Final = 64
"""Relays among which a member chooses."""
DRAIN_S: Final = 30.0
"""Seconds from our last word as a relay until we end what still goes through us."""
LEAVE_S: Final = 5.0
"""Of these, so many are waited for when the node ends."""


class Relaying:
    """See the module's docstring.

    Args:
        setting: the owner's ``relay``.
        may: whether the owner's quota allows for relaying now.
        always: a pure relay, whose owner knows that it is reached.
    """

    def __init__(
        self,
        engine: Engine,
        setting: str,
        may: Callable[[], bool],
        *,
        always: bool = False,
    ) -> None:
        self._network, self._roster = engine.network, engine.membership.roster
        self._own_advert, self._reach = engine.own_advert, engine.reach
        self._setting, self._may, self._always = setting, may, always
        self._explain = engine.event_sink.explain
        self._outside_since: float | None = None
        self._told: tuple[PeerId, ...] | bool = False
        self._over = False

    async def run(self) -> None:
        while True:
            self.look()
            await trio.sleep(TICK_S)

    def look(self) -> None:
        """Offer to relay if we may, keep reservations if we need them, and advertise both."""
        lent = self._lent_bytes_per_s()
        offers = not self._over and lent > 0 and self._may()
        offers = offers and self._own_advert.entered and (self._always or self._reached())
        if offers or self._network.passing.machine.offers:
            self._network.passing.offer(relays=offers, rate_bytes_per_s=lent, drain_s=DRAIN_S)
        self._own_advert.change(relay_bytes_per_s=lent if offers else 0.0)
        needed = self._needed() and not self._over
        self._network.reaching.update(self._candidates() if needed else {}, needed=needed)
        self._tell(offers=offers)

    async def leave(self) -> None:
        """Relay no longer, and wait a little for those that go through us to find others."""
        self._over = True
        self.look()
        with trio.move_on_after(LEAVE_S):
            while self._network.passing.machine.circuits:
                await trio.sleep(LEAVE_S / 10)

    def view(self) -> RelayView:
        """Return how we are reached and whom we relay for, for the status."""
        machine = self._network.passing.machine
        return RelayView(
            through=list(self._network.reaching.relays),
            rate_bytes_per_s=self._lent_bytes_per_s() if machine.offers else 0.0,
            members=len(machine.reservations),
            circuits=machine.circuits,
            passed_bytes=machine.passed_bytes,
        )

    def _reached(self) -> bool:
        """Whether we can be dialled from the internet."""
        return self._network.reached or self._reach.reachable

    def _lent_bytes_per_s(self) -> float:
        return lent_bytes_per_s(self._setting, self._own_advert.upload_bytes_per_s)

    def _needed(self) -> bool:
        """Whether nobody is likely to dial us: the only place where that is judged."""
        if self._always or self._reached() or not self._network.is_outside:
            self._outside_since = None
            return False
        now = trio.current_time()
        if self._outside_since is None:
            self._outside_since = now
        return self._own_advert.entered and now >= self._outside_since + PATIENCE_S

    def _candidates(self) -> Mapping[PeerId, Sequence[str]]:
        """Return some members that relay, the best first: those whom work has proven, for anybody
        may offer to relay, and make keys that are the first for us by hash. By that members spread
        over the relays."""
        relays = (one for one in self._roster.members() if one.advert.relay_bytes_per_s > 0)
        me, roster = self._network.peer_id, self._roster

        def order(member: Member) -> tuple[bool, bytes]:
            return roster.is_guest(member.peer), rank(me, member.peer)

        some = nsmallest(CANDIDATES, relays, key=order)
        return {member.peer: member.advert.addresses for member in some}

    def _tell(self, *, offers: bool) -> None:
        now = self._network.reaching.relays or offers
        if now == self._told:
            return
        self._told = now
        relays = now if isinstance(now, tuple) else ()
        if relays:
            through = " and ".join(map(short, relays))
            words = f"nobody can dial this volunteer: it is reached through {through}"
        elif now:
            words = "this volunteer can be dialled: it relays for members that cannot"
        else:
            words = "this volunteer relays for nobody and is reached through nobody"
        self._explain(Explain("membership", words, members=relays))

"""Leasing at one replica of stage 0: asks the step's leader for work, and grants it as leader."""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.effects import Explain, Send
from protocol.ids import PeerId
from protocol.pipeline.flight import SPARE, Flight
from protocol.pipeline.lease_server import LeaseServer
from protocol.pipeline.next_hop import believed_rates
from protocol.pipeline.place import Place
from protocol.pipeline.second_leases import HasLedger
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Lease, LeaseRequest


class LeaseClient:
    """Asks for leases, and owns the lease server used while we lead; idle at other stages."""

    def __init__(self, place: Place, flight: Flight, lease_server: LeaseServer) -> None:
        self._place, self._lease_server = place, lease_server
        self._asked: tuple[PeerId, int] | None = None
        self._asked_at = 0.0
        self._flight = flight

    def start_step(self, step: int, *, fresh: bool) -> None:
        """Begin a step; ``fresh`` if we lead it from the start."""
        self._asked = None
        self._lease_server.start_step(step, fresh=fresh)

    def successor(self, *, fresh: bool) -> LeaseClient:
        """Return the client of the next step, with the requests made to it already."""
        return LeaseClient(self._place, self._flight, self._lease_server.successor(fresh=fresh))

    # --- asking ----------------------------------------------------------------------------

    def ask(
        self, leader: PeerId, view: SwarmView, in_flight: int, held: int, now: float
    ) -> list[Send]:
        """Ask for as much as we can take, unless we have asked for exactly that already.

        Args:
            leader: leader of the step.
            view: the live replicas.
            in_flight: microbatches that we work on, of any step.
            held: microbatches of this step that we have, including counted ones.
            now: monotonic seconds.
        """
        want = self.in_flight_cap(view) - in_flight
        if want <= 0 or self._asked == (leader, want):
            return []
        if self._asked is None:
            self._asked_at = now
        self._asked = (leader, want)
        return [Send(leader, LeaseRequest(self._lease_server.step, want, held))]

    def got_work(self, now: float) -> None:
        """A lease came: what we asked for is settled."""
        if self._asked is not None:
            self._flight.leased(now - self._asked_at)
        self._asked = None

    def in_flight_cap(self, view: SwarmView) -> int:
        """Return the microbatches that we keep in flight at stage 0.

        As many as are busy somewhere, by the number of replicas; more, up to the whole step, where
        lines are so long that those do not keep them busy.
        """
        return max(
            usual_in_flight(view, self._place), min(self._flight.depth(), self._place.per_step)
        )

    # --- handing out -----------------------------------------------------------------------

    def asked(self, sender: PeerId, message: LeaseRequest) -> None:
        """Note a request for work."""
        self._lease_server.ask(sender, message.step, message.want, message.held)

    def take_over(self) -> None:
        """We have become the leader in the middle of a step."""
        self._lease_server.take_over()

    def release(self, peer: PeerId, reports: Mapping[PeerId, HasLedger]) -> None:
        """A replica died: what it held is free, unless a survivor holds it too."""
        self._lease_server.release(peer, {p: r for p, r in reports.items() if p != peer})

    def grant(
        self,
        reports: Mapping[PeerId, HasLedger],
        at_step: set[PeerId],
        now: float,
        *,
        say_none: bool = False,
    ) -> list[Send | Explain]:
        """Lease free microbatches to replicas that asked; near the end also late ones again.

        Args:
            reports: newest ledger report of each replica.
            at_step: live replicas of this step.
            now: monotonic seconds.
            say_none: tell each waiting replica once when nothing is left.
        """
        granted = self._lease_server.grant(reports, at_step, now)
        effects: list[Send | Explain] = [
            Send(peer, Lease(self._lease_server.step, ids, again)) for peer, again, ids in granted
        ]
        if second := self._lease_server.grant_second(now):
            effects.append(
                Send(second.peer, Lease(self._lease_server.step, [second.microbatch], True))
            )
            effects.append(Explain("pipeline", second.words(now)))
        told = self._lease_server.in_vain() if say_none else []
        return [*effects, *(Send(peer, Lease(self._lease_server.step, [], False)) for peer in told)]

    def without_backups(self) -> None:
        """Lease nothing twice on suspicion of being slow; to compare."""
        self._lease_server.seconds.budget.enabled = False

    def begin(self) -> None:
        """Its step is the current one from now on."""
        self._lease_server.begin()

    def tick(self, reports: Mapping[PeerId, HasLedger], now: float, *, all_said: bool) -> None:
        """Free ids that were leased a while ago and that no replica reports.

        ``reports``, ``now`` and ``all_said`` are as for ``LeaseServer.tick``.
        """
        self._lease_server.tick(reports, now, all_said=all_said)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        return self._lease_server.next_deadline()


def usual_in_flight(view: SwarmView, place: Place) -> int:
    """Return our share of the microbatches that occupy all replicas at once, and a quarter more.

    Shares are proportional to speed, so that the step does not wait for work that a slow replica
    has not begun.
    """
    first = view.serving(0)
    replicas = sum(len(view.serving(stage)) for stage in range(place.stages))
    together = max(place.stages * len(first), replicas)
    return math.ceil(SPARE * together * _share(first, place.me)) + 1


def _share(replicas: tuple[Replica, ...], me: PeerId) -> float:
    """Return our share of a stage's speed; equal shares until all speeds are known."""
    rates = believed_rates({replica.peer: replica.rate for replica in replicas})
    return rates[me] / sum(rates.values()) if me in rates else 1 / max(1, len(replicas))

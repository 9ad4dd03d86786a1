"""Connectivity: notices that our way to the others has changed, and sees to it.

The states of a link and the kinds of change are those of `protocol/SPEC.md`, section 18. A doubted
peer is dialled beside its link; if the link is heard again first, nothing was lost.

After a change who is not linked is dialled at once, and again after 4, 8, 16 ... 60 s while nobody
answers. What the world knows of us is renewed at the first answer, and at once after a move. The
change is over when everybody is heard who was before, or 30 s after the first one.

State: what each link has received and when, our surroundings, the change under way.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import trio

from client.net.addresses import own_hosts
from client.net.gateway import routers
from client.net.host import Connection
from protocol.effects import Explain
from protocol.ids import PeerId
from protocol.pace import ANSWER_S, ASIDE_S, FORGET_S, HEARD_S, LONG_S, LOOK_S, LOST_S, TICK_S

ANSWER_TRIPS: Final = 4.0
PING_S: Final = 5.0
"""Between two measurements of a round trip, at the least."""
SILENT_S: Final = 20.0
"""Seconds without any data, though pings were sent, after which a connection is dead."""
SEVERAL: Final = 2
"""One link that ends tells of its peer; more may tell of us."""
MAX_LOST: Final = 1024

SILENT_WORDS: Final = "the way to the others was interrupted"


class Surroundings(NamedTuple):
    """What this machine knows of its network."""

    hosts: frozenset[str] = frozenset()
    """Its addresses, numbers, without loopback."""
    routers: tuple[object, ...] = ()
    """The ways out; empty where the system does not tell."""


class Links(Protocol):
    """The part of ``Libp2pNetwork`` that it uses."""

    def working(self) -> Mapping[PeerId, Connection]: ...
    def doubt(self, peer: PeerId) -> None: ...
    def dial_again(self) -> None: ...
    def network_changed(self) -> None: ...


@dataclass(slots=True)
class _Known:
    connection: Connection
    bytes_in: int
    since: float
    heard_at: float
    asked_at: float | None = None


@dataclass(slots=True)
class _Change:
    words: str
    began: float
    before: dict[PeerId, tuple[Connection, int]]
    """Who was linked: the connection, and its answers. Bytes are none: they may have been under way
    before."""
    again_at: float
    again_s: float = HEARD_S
    answered: set[PeerId] = field(default_factory=set)
    first_at: float = math.inf
    left: Surroundings | None = None
    """Our surroundings before."""
    slept: bool = False
    renewed: int = 0
    """Of those that answered, how many did so on another connection."""


class Connectivity:
    """See the module's docstring.

    Attributes:
        renew: called when what the world knows of us may be wrong.
        explain: tells the user.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self.renew: Callable[[], None] = lambda: None
        self.explain: Callable[[Explain], None] = lambda _: None
        self._surroundings: Surroundings | None = None
        self._known: dict[PeerId, _Known] = {}
        self._lost: dict[PeerId, tuple[float, Connection]] = {}
        """Direct links that have ended lately, come back or not, and when."""
        self._ticked: float | None = None
        self._change: _Change | None = None
        self._last, self._last_at = "", -math.inf
        """The last change and what came of it, in words, and when it was over."""

    async def run(self) -> None:
        while True:
            self.tick(trio.current_time())
            self.looked(surroundings(), trio.current_time())
            await trio.sleep_until(self.next_deadline())

    def looked(self, now_here: Surroundings, now: float) -> None:
        """Compare our surroundings with those of the last look."""
        before, self._surroundings = self._surroundings, now_here
        if before is None or before == now_here:
            return
        self._hear(now)
        gone = before.hosts - now_here.hosts
        left = self._change.left or before if self._change is not None else before
        words = _moved_words(left.hosts - now_here.hosts, now_here.hosts - left.hosts)
        for known in self._known.values():
            if known.connection.own_host in gone:
                known.connection.close("its address of this machine is gone")
        self._begin(words, now, now, left)
        self._dial_and_renew()

    def tick(self, now: float) -> None:
        """Judge the links when ``next_deadline`` is due; suspended time counts in ``now``."""
        late_s = self._forgive_own_lateness(now)
        self._hear(now)
        if late_s >= LOST_S:  # others notice it; a shorter sleep costs no link
            self._begin(f"this machine slept for {_seconds(late_s)}", now, now, slept=True)
            self._links.dial_again()
        self._judge(now)
        if self._change is None and self._is_silent():
            self._begin(SILENT_WORDS, self._silent_since(now), now)
        self._go_on(now)

    def next_deadline(self) -> float:
        if self._ticked is None:
            return -math.inf
        return self._ticked + (TICK_S if self._change is None else LOOK_S)

    def _forgive_own_lateness(self, now: float) -> float:
        """Return by how much this tick is late; silence in that time was our own fault: we were
        busy or stopped."""
        due = self.next_deadline()
        self._ticked = now
        late_s = 0.0 if due == -math.inf else now - due
        if late_s > TICK_S:
            for known in self._known.values():
                known.heard_at = min(now, known.heard_at + late_s)
                if known.asked_at is not None:
                    known.asked_at = min(now, known.asked_at + late_s)
        return late_s

    def _hear(self, now: float) -> None:
        there = self._links.working()
        for peer, known in list(self._known.items()):
            if there.get(peer) is not known.connection:
                self._note_end(known, now)
                del self._known[peer]
        for peer, one in there.items():
            known = self._known.setdefault(peer, _Known(one, one.bytes_in, now, now))
            if known.bytes_in != one.bytes_in:
                self._known[peer] = _Known(one, one.bytes_in, known.since, now)
        self._lost = {p: ended for p, ended in self._lost.items() if ended[0] + LOST_S > now}

    def _note_end(self, known: _Known, now: float) -> None:
        one = known.connection  # a younger one may only have been one of two dialled at once
        if one.relay is None and now >= known.since + HEARD_S and len(self._lost) < MAX_LOST:
            self._lost.setdefault(one.peer, (now, one))

    def _judge(self, now: float) -> None:
        """Ask who is silent, doubt who does not answer, and end what is silent for long."""
        for peer, known in self._known.items():
            session = known.connection.session
            if now >= known.heard_at + SILENT_S:
                known.connection.close("silent")
            elif known.asked_at is None:
                silent = now >= known.heard_at + HEARD_S
                known.asked_at = now if silent else None
                if silent or now >= session.pinged_at + PING_S:
                    session.ping()
            elif not known.connection.in_doubt:
                patience_s = ANSWER_S + ANSWER_TRIPS * (session.rtt_s or 0.0)
                if now >= known.asked_at + patience_s:
                    self._links.doubt(peer)

    def _is_silent(self) -> bool:
        """Whether so many direct links are doubted or lost that it tells of ourselves."""
        direct = [one.connection for one in self._known.values() if one.connection.relay is None]
        doubted = [one.in_doubt for one in direct if one.peer not in self._lost]
        if not any(doubted) and len(self._lost) < SEVERAL:
            return False
        return len(doubted) - sum(doubted) < sum(doubted) + len(self._lost)

    def _silent_since(self, now: float) -> float:
        """Return when the last one was heard, as far as we know."""
        lost = [at for at, _ in self._lost.values()]
        doubted = [known.heard_at for known in self._known.values() if known.connection.in_doubt]
        return min((*lost, *doubted), default=now)

    def _begin(
        self,
        words: str,
        began: float,
        now: float,
        left: Surroundings | None = None,
        *,
        slept: bool = False,
    ) -> None:
        """Begin a change, or go on with another reason, and ask everybody who is not doubted or
        cut off."""
        there = {peer: known.connection for peer, known in self._known.items()}
        before = {peer: (one, one.session.answers) for peer, one in there.items()}
        before |= {peer: (one, 0) for peer, (_, one) in self._lost.items()}
        self._lost.clear()
        if (under_way := self._change) is not None:
            before = under_way.before | before
            began = under_way.began
        self._change = _Change(words, began, before, now + HEARD_S, left=left, slept=slept)
        for known in self._known.values():
            if not (known.connection.in_doubt or known.connection.reason):
                known.asked_at = now
                known.connection.session.ping()

    def _dial_and_renew(self) -> None:
        self._links.dial_again()
        self._links.network_changed()
        self.renew()

    def _go_on(self, now: float) -> None:
        change = self._change
        if change is None:
            return
        self._note_answers(change, now)
        if change.first_at == now:
            self._dial_and_renew()
        elif change.first_at == math.inf and change.before and now >= change.again_at:
            change.again_s = min(2 * change.again_s, ASIDE_S)
            change.again_at = now + change.again_s
            self._links.dial_again()
        if len(change.answered) == len(change.before) or now >= change.first_at + FORGET_S:
            self._end(change, now)

    def _note_answers(self, change: _Change, now: float) -> None:
        for peer, known in self._known.items():
            before, answers = change.before.get(peer, (None, 0))
            returned = known.connection is not before
            if not returned and known.connection.session.answers == answers:
                continue
            change.first_at = min(change.first_at, now)
            if peer in change.before and peer not in change.answered:
                change.answered.add(peer)
                change.renewed += returned

    def _end(self, change: _Change, now: float) -> None:
        """The change is over; one that has cost no link is not worth a word."""
        self._change = None
        self._lost.clear()
        answered, before = len(change.answered), len(change.before)
        unharmed = answered == before and not change.renewed
        if not before or (unharmed and not change.slept):
            return
        took = _seconds(now - change.began)
        self._last = f"{change.words}; linked again with {answered} of {before} after {took}"
        self._last_at = now
        self.explain(Explain("swarm", self._last))

    def words(self, now: float) -> str:
        """Return the change under way, or the last one of an hour, in words; empty: there is
        none."""
        change = self._change
        if change is not None and change.before and not change.answered:
            return f"{change.words}; dialling {len(change.before)} again"
        return self._last if now < self._last_at + LONG_S else ""


def _moved_words(gone: Collection[str], new: Collection[str]) -> str:
    """Return what has changed; of many addresses the first ones."""
    parts = [
        f"{', '.join(sorted(hosts)[:2])} is {verb}"
        for hosts, verb in ((gone, "gone"), (new, "new"))
        if hosts
    ]
    return f"the network changed ({' and '.join(parts) or 'another router'})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def surroundings() -> Surroundings:
    return Surroundings(frozenset(own_hosts()), routers())

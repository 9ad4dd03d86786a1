"""Next-hop choice: each microbatch goes to the replica that is expected to finish it first.

After SWARM (arXiv 2301.11913, section 3.2), with two differences. The load of a replica is its work
in flight (join the shortest expected delay), not all work ever sent there. And a microbatch is
charged with the replica's own time, 1 / rate, if that is known: the time until its gradient comes
back is mostly that of the stages behind, which is the same for a fast replica and a slow one.

A replica gets nothing for a while if it has refused work, or was struck because it brings nothing
while its siblings do (``delivery``).
"""

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from statistics import median_low

from protocol.ids import PeerId, rank
from protocol.pace import ANSWER_S, FORGET_S, LOOK_S
from protocol.pipeline.newcomers import NOBODY
from protocol.pipeline.timing import UNMEASURED_S, Timing

MOST_TIMES = 3.0
"""What takes so many times the usual is late, however much times vary. A replica that has not shown
what it needs may need so many times what its slowest sibling does."""
MOST_DOUBLINGS = 5
"""Of the time for which a replica gets nothing that brings nothing: 16 minutes."""
MAX_TIMES_USUAL = 4.0
"""A rate above so many times the median of its stage's replicas counts as that."""
MUCH_SLOWER = 3.0
"""A replica that takes so many times as long as another one is not as fast as it says."""
SELDOM = 32.0
"""A replica is tried again after so many times what it needed, or trying would cost much."""
RELAYED_MORE = 3.0
"""A replica that we reach through a relay only counts as if it had so many microbatches more."""
LATELY = 1024
"""Choices of which newcomers get a bounded share; then each counts half."""
LEAST_RATE = 1e-6
"""Lower bound of a believed rate: a microbatch would take twelve days."""
_Open = tuple[float, bytes, PeerId]


@dataclass(slots=True)
class Account:
    """What we know of one replica."""

    gradient: Timing
    """Sending to gradient, as measured here."""
    rate: float = 0.0
    """Microbatches per second, as it says; 0: not known."""
    sampled_at: float = math.inf
    """When it was measured last; inf: never."""
    charged: int = 0
    """Number of microbatches that it has of us."""
    brought_at: float = -math.inf
    heard_at: float = -math.inf
    """Of a receipt or a gradient."""
    strikes: int = 0
    """Since it last brought anything."""
    suspended_until: float = 0.0
    rests_until: float = 0.0
    chosen: int = 0
    """How often it was chosen lately."""

    @property
    def service_s(self) -> float:
        """Its time for one microbatch."""
        return 1 / self.rate if self.rate else self.gradient.mean_s

    def is_stale(self, now: float) -> bool:
        """Whether it was measured so long ago that this says little of now."""
        return now - self.sampled_at > max(FORGET_S, SELDOM * self.gradient.mean_s)

    def release(self) -> None:
        """It does not have a microbatch any more that it was charged with."""
        self.charged = max(0, self.charged - 1)

    def settle(self, seconds: float, queue: int, now: float) -> None:
        """A microbatch took so many ``seconds`` from sending to gradient, with ``queue`` of ours
        there, itself included."""
        if self.is_stale(now):
            self.gradient = Timing()
        self.gradient.note(seconds, queue)
        self.sampled_at = now

    def overtaken(self, seconds: float, queue: int, now: float) -> None:
        """A microbatch has taken so long and is not done."""
        self.gradient.at_least(seconds, queue)
        self.sampled_at = now

    def brought(self, now: float) -> None:
        """Some gradient has come from there."""
        self.brought_at = self.heard_at = now
        self.strikes, self.suspended_until = 0, 0.0

    def refused(self, now: float) -> None:
        """It has refused work: it is left alone for a moment."""
        self.rests_until = now + LOOK_S

    def struck(self, now: float) -> None:
        """It brings nothing: it gets nothing for a while, twice as long each time in a row."""
        if now >= self.suspended_until:
            self.suspended_until = now + FORGET_S * (1 << min(self.strikes, MOST_DOUBLINGS))
            self.strikes += 1

    def shown_at(self, *, early: bool) -> float:
        """Return when a gradient came from there last, in monotonic seconds; ``early``: or a
        receipt."""
        return self.heard_at if early else self.brought_at


def believed_rates(rates: Mapping[PeerId, float]) -> dict[PeerId, float]:
    """Return what a stage's replicas say of their speed, within bounds; empty until all say one."""
    if not rates or not all(rate > 0 for rate in rates.values()):
        return {}
    most = MAX_TIMES_USUAL * median_low(rates.values())
    return {peer: max(LEAST_RATE, min(rate, most)) for peer, rate in rates.items()}


class NextHop:
    """Chooses among the replicas of one stage; holds a clock-free account per replica."""

    def __init__(self) -> None:
        self.accounts: dict[PeerId, Account] = {}
        """Of the live replicas."""
        self.leaving: Set[PeerId] = frozenset()
        """These drain: they get no work as long as another one stays."""
        self.relayed: Set[PeerId] = frozenset()
        """We reach these through a relay only, by our own links."""
        self.bound = NOBODY
        """What newcomers of the stage may have."""

    def update(self, rates: Mapping[PeerId, float]) -> None:
        """Make these the live replicas, with microbatches per second as they say.

        If one of them has not said yet, the measured times of all count, which compare.
        """
        for gone in self.accounts.keys() - rates.keys():
            del self.accounts[gone]
        known = [c.gradient.mean_s for c in self.accounts.values()]
        hop_s = sum(known) / len(known) if known else ANSWER_S
        believed = believed_rates(rates)
        for peer in rates:
            if peer not in self.accounts:
                self.accounts[peer] = Account(Timing(mean_s=hop_s))
            self.accounts[peer].rate = believed.get(peer, 0.0)

    # --- choosing --------------------------------------------------------------------------

    def choose(
        self, now: float, exclude: Collection[PeerId] = (), *, tried: bool = False
    ) -> PeerId | None:
        """Charge the replica that is expected to be done first with one microbatch, and return it;
        None if there is none or all rest. ``Account.release`` takes the charge back.

        Args:
            now: monotonic seconds.
            exclude: replicas that are not to be chosen.
            tried: prefer those that have shown how long they take.
        """
        floors = self._floors()
        open_to = list[_Open]()
        for peer, c in self._open(exclude, now, tried=tried).items():
            before = c.charged + (RELAYED_MORE if peer in self.relayed else 0.0)
            done_s = before * c.service_s + max(c.service_s, floors.get(peer, 0.0))
            if c.is_stale(now) and not (c.charged or tried):
                done_s = 0.0
            open_to.append((done_s, rank(peer, c.charged), peer))
        if not open_to:
            return None
        peer = min(self._within_share(open_to))[2]
        self.accounts[peer].chosen += 1
        if sum(c.chosen for c in self.accounts.values()) >= LATELY:
            for candidate in self.accounts.values():
                candidate.chosen //= 2
        self.accounts[peer].charged += 1
        return peer

    def _within_share(self, open_to: list[_Open]) -> list[_Open]:
        """Leave out newcomers that have had their share of what was sent lately."""
        if not self.bound.named:
            return open_to
        had = {peer: c.chosen for peer, c in self.accounts.items()}
        of = sum(had.values()) + 1
        return [one for one in open_to if self.bound.allows(one[2], had, of)] or open_to

    def _floors(self) -> dict[PeerId, float]:
        """Return the least time that a microbatch takes at replicas that need much longer for it
        than another, whatever they say of their rate: what they need more than that one, for the
        stages behind are the same."""
        measured = {p: c for p, c in self.accounts.items() if c.gradient.measured}
        if len(measured) < 2:
            return {}
        best = min(measured.values(), key=lambda c: c.gradient.mean_s)
        usual_s = best.gradient.mean_s
        return {
            peer: best.service_s + c.gradient.mean_s - usual_s
            for peer, c in measured.items()
            if c.gradient.mean_s > MUCH_SLOWER * usual_s
        }

    def _open(
        self, exclude: Collection[PeerId], now: float, *, tried: bool = False
    ) -> dict[PeerId, Account]:
        """Return those that take work: of the ones that stay and are not suspended, or of all if
        there is none."""
        left = {p: c for p, c in self.accounts.items() if p not in exclude}
        stay = {p: c for p, c in left.items() if p not in self.leaving} or left
        fine = {p: c for p, c in stay.items() if c.suspended_until <= now} or stay
        if tried:
            fine = {p: c for p, c in fine.items() if c.gradient.measured} or fine
        return {p: c for p, c in fine.items() if c.rests_until <= now}

    def spare(self, since: float, now: float, *, early: bool = False) -> set[PeerId]:
        """Return the replicas that take work and have none of ours, or have shown something since
        ``since``: a gradient, or, of a step that is ``early``, an answer."""
        there = [(p, c) for p, c in self._open((), now).items() if not c.strikes]
        return {p for p, c in there if not c.charged or c.shown_at(early=early) > since}

    # --- expecting -------------------------------------------------------------------------

    def late_s(self, peer: PeerId, queue: int) -> float:
        """Return after how long a microbatch is late at a replica."""
        # each that sends to one that has brought nothing lately tries it, and its stage waits
        least_s = LOOK_S if self.accounts[peer].strikes else 2 * ANSWER_S
        if (own := self.accounts[peer].gradient).measured:
            return max(least_s, min(own.late_s(queue), MOST_TIMES * own.expected_s(queue)))
        known = [c.gradient.mean_s for c in self.accounts.values() if c.gradient.measured]
        return max(least_s, MOST_TIMES * max(known)) if known else UNMEASURED_S

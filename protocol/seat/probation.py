"""Probation: what replicas count for that we have never worked with. Identities are free.

A replica is *proven* once a step that we closed contains its work, or once a plan that we followed
names it among the members or electors. In a stage beside ours or in our own that has a proven one,
the others are on probation:

- no proven one, of whatever stage, is set aside for what they say, and they are no electors;
- each of them counts while it has one of the few *places* of its stage. In our own stage a leader
  gives them: there are four, or twice as many as proven replicas. In a stage beside ours whoever
  failed least often gets them, then in an order by hash: as many as are proven there, two at least;
- the place of one that was set aside stays empty for a while, twice as long each time, until one on
  probation has worked with us.

So a crowd of them costs a stage one wait for each of the few places in every such while, and
whoever is tried along with them has its chance. Where nobody is proven everybody counts: before our
first plan in a lineage, and in a stage whose replicas are all new. State: who has which place, and
who was set aside how often. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from protocol import limits
from protocol.ids import PeerId, rank
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.view import Replica, SwarmView

BESIDE: Final = 2
NEW_AT_ONCE: Final = 4
"""The least places of a stage beside ours, and of our own."""
NEW_S: Final = 60.0
"""For so long one that was let in may take to fetch the state and serve."""
CLOSED_S: Final = 60.0
"""The first time; it doubles with each one that is set aside."""
MOST_DOUBLINGS: Final = 4
MAX_FAILURES: Final = 1024
Proves = Callable[[PeerId], bool]


@dataclass(frozen=True, slots=True)
class _Tried:
    """Who has a place keeps it until then, or for as long as it is here; or the place is empty."""

    until: float
    empty: bool = False


class Probation:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        quorum: whose roll and electors are proven.
        proves: whether a step that this volunteer closed contains a peer's work; None: everybody is
            proven, as in worlds without invented members.
    """

    def __init__(self, place: Place, quorum: Quorum, proves: Proves | None) -> None:
        self._place, self._quorum, self._proves = place, quorum, proves
        near = (place.stage - 1, place.stage, place.stage + 1)
        self._tried: dict[int, dict[PeerId, _Tried]] = {
            stage: {} for stage in near if 0 <= stage < place.stages
        }
        self._times, self._failures = Counter[int](), Counter[PeerId]()
        self._left_out: frozenset[PeerId] = frozenset()
        self._view, self._looked_at = SwarmView(((),) * place.stages), 0.0

    def is_proven(self, peer: PeerId) -> bool:
        """Whether a peer is more to us than its own word."""
        known = peer == self._place.me or self._quorum.names(peer)
        return self._proves is None or known or self._proves(peer)

    @property
    def left_out(self) -> frozenset[PeerId]:
        """The replicas of the last view that do not count yet."""
        return self._left_out

    def leaves_out(self, peer: PeerId) -> bool:
        """Whether a replica of the last view does not count yet."""
        return peer in self._left_out

    def lets_in(self, peer: PeerId, now: float) -> bool:
        """Whether a newcomer to our stage may be let in, by us or by the leader that names it. It
        keeps its place.

        Only proven replicas make places: those let in say that they serve, and would make places
        for more of their kind.
        """
        if self.is_proven(peer):
            return True
        tried, ours = self._still_tried(self._place.stage, now), self._place.stage
        proven = sum(self.is_proven(r.peer) for r in self._view.serving(ours))
        if peer not in tried and len(tried) >= max(NEW_AT_ONCE, 2 * proven):
            return False
        return not tried.setdefault(peer, _Tried(now + NEW_S)).empty

    def admit(self, peers: Collection[PeerId], now: float) -> bool:
        """These work in our stage, as a plan that we follow says, or were let in; return whether
        one of them counts only now."""
        tried = self._still_tried(self._place.stage, now)
        for peer in [peer for peer in peers if not self.is_proven(peer)]:
            if len(tried) < 2 * limits.MAX_REPLICAS_IN_ROUND:
                tried.setdefault(peer, _Tried(now + NEW_S))
        return not self._left_out.isdisjoint(peers)

    def failed(self, peers: Collection[PeerId], now: float) -> bool:
        """These were set aside: the place of one on probation stays empty for a while. Return
        whether one was."""
        found = False
        for stage, tried in self._tried.items():
            for peer in [p for p in peers if p in tried and not self.is_proven(p)]:
                wait_s = CLOSED_S * (1 << min(self._times[stage], MOST_DOUBLINGS))
                tried[peer], found = _Tried(now + wait_s, empty=True), True
                self._times[stage] += 1
                self._failures[peer] += 1
        for peer in list(self._failures)[:-MAX_FAILURES]:
            del self._failures[peer]
        return found

    def proved(self, peers: Collection[PeerId]) -> None:
        """A step was closed with the work of these: if one was on probation, others are tried."""
        for stage, tried in self._tried.items():
            if not tried.keys().isdisjoint(peers):
                self._tried[stage] = {p: one for p, one in tried.items() if not one.empty}
                del self._times[stage]

    def without(self, view: SwarmView, now: float) -> SwarmView:
        """Return the view without those that do not count yet."""
        self._view, self._looked_at = view, now
        if self._proves is None:
            return view
        stages, left_out = list(view.stages), set[PeerId]()
        for stage in self._tried:
            kept = self._kept(view, stage, now)
            left_out |= {r.peer for r in stages[stage]} - {r.peer for r in kept}
            stages[stage] = kept
        self._left_out = frozenset(left_out)
        return replace(view, stages=tuple(stages))

    def is_over(self, now: float) -> bool:
        """Whether a place may be taken again that stayed empty at the last view."""
        return (self.next_deadline() or now + 1) <= now

    def next_deadline(self) -> float | None:
        """Return when somebody on probation may be tried again."""
        empty = (one for tried in self._tried.values() for one in tried.values() if one.empty)
        return min((one.until for one in empty if one.until > self._looked_at), default=None)

    def _still_tried(self, stage: int, now: float) -> dict[PeerId, _Tried]:
        """Return who has a place of a stage: it is here, or has time to come, or failed lately."""
        here = {r.peer for r in self._view.stages[stage]}
        self._tried[stage] = {
            peer: one
            for peer, one in self._tried[stage].items()
            if now < one.until or (peer in here and not one.empty)
            if not self.is_proven(peer)
        }
        return self._tried[stage]

    def _kept(self, view: SwarmView, stage: int, now: float) -> tuple[Replica, ...]:
        here, own = view.stages[stage], stage == self._place.stage
        proven = {r.peer for r in here if self.is_proven(r.peer)}
        if not (self._quorum.settled if own else proven):
            return here
        tried = self._still_tried(stage, now)
        if not own:
            new = [r.peer for r in here if r.peer not in proven and r.peer not in tried]
            new.sort(key=lambda peer: (self._failures[peer], rank("probation", stage, peer)))
            free = max(0, max(BESIDE, len(proven)) - len(tried))
            tried |= {peer: _Tried(now) for peer in new[:free]}
        counts = proven.union(peer for peer, one in tried.items() if not one.empty)
        return tuple(r if r.peer in proven else self._quiet(r) for r in here if r.peer in counts)

    def _quiet(self, replica: Replica) -> Replica:
        """Return a replica without what it says of proven ones, in whatever stage."""
        others = (peer for peer in replica.missing if not self.is_proven(peer))
        return structs.replace(replica, missing=tuple(others))

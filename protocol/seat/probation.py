"""Probation: what replicas count for that we have never worked with. Identities are free.

A replica is *proven* once a step that we closed contains its work, or once a plan that we followed
names it among the members or electors. In a stage beside ours or in our own that has a proven one,
the others are on probation:

- no proven one, of whatever stage, is set aside for what they say, and they are no electors;
- in our own stage they count once a leader has admitted them, or a plan names them, and until they
  are set aside;
- in a stage beside ours as many count as are proven there, two at least: those that were set aside
  least often, then in an order by hash;
- when one of them was set aside, none begins to count for a while, twice as long each time; those
  that counted then and did not fail go on.

So a crowd of them costs a stage one wait in every such while, or one for each of the few that are
tried at a time, and whoever is tried along with them has its chance. Where nobody is proven
everybody counts: before our first plan in a lineage, and in a stage whose replicas are all new.
State: admitted peers, who counts now, who was set aside how often and, by stage, until when nobody
else is tried. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from protocol.ids import PeerId, rank
from protocol.pace import ASIDE_S
from protocol.pipeline.place import Place
from protocol.rounds.quorum import Quorum
from protocol.view import Replica, SwarmView

AT_LEAST: Final = 2
MOST_DOUBLINGS: Final = 4
MAX_ADMITTED: Final = 64
MAX_FAILURES: Final = 1024
Proves = Callable[[PeerId], bool]


@dataclass(slots=True)
class _Closed:
    until: float
    times: int


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
        self._admitted: dict[PeerId, None] = {}
        self._closed: dict[int, _Closed] = {}
        self._left_out: frozenset[PeerId] = frozenset()
        self._failures = Counter[PeerId]()
        self._on_trial: frozenset[PeerId] = frozenset()
        """Those on probation that serve and counted in the last view."""
        self._looked_at = 0.0

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

    def admit(self, peers: Collection[PeerId]) -> bool:
        """A leader has admitted these, or a plan that we follow names them; return whether one of
        them counts only now."""
        new = [peer for peer in peers if peer in self._left_out]
        for peer in peers:
            self._admitted.pop(peer, None)
            self._admitted[peer] = None
        for peer in list(self._admitted)[:-MAX_ADMITTED]:
            del self._admitted[peer]
        return bool(new)

    def failed(self, peers: Collection[PeerId], view: SwarmView, now: float) -> bool:
        """These were set aside: one on probation has to be admitted again, and nobody else is tried
        for a while. Return whether one was."""
        new = {peer for peer in peers if not self.is_proven(peer)}
        self._on_trial -= new
        for peer in new:
            self._admitted.pop(peer, None)
        stages = [s for s in self._stages() if any(r.peer in new for r in view.serving(s))]
        self._failures.update(new)
        for peer in list(self._failures)[:-MAX_FAILURES]:
            del self._failures[peer]
        for stage in stages:
            times = self._closed[stage].times if stage in self._closed else 0
            wait_s = ASIDE_S * (1 << min(times, MOST_DOUBLINGS))
            self._closed[stage] = _Closed(now + wait_s, times + 1)
        return bool(stages)

    def proved(self, peers: Collection[PeerId], view: SwarmView) -> None:
        """A step was closed with the work of these: if one was on probation, others are tried."""
        new = {peer for peer in peers if not self.is_proven(peer)}
        for stage in [s for s in self._closed if any(r.peer in new for r in view.serving(s))]:
            del self._closed[stage]

    def without(self, view: SwarmView, now: float) -> SwarmView:
        """Return the view without those that do not count yet."""
        self._looked_at = now
        if self._proves is None:
            return view
        stages, left_out, on_trial = list(view.stages), set[PeerId](), set[PeerId]()
        for stage in self._stages():
            kept = self._kept(view, stage, now)
            left_out |= {r.peer for r in stages[stage]} - {r.peer for r in kept}
            on_trial |= {r.peer for r in kept if r.serving and not self.is_proven(r.peer)}
            stages[stage] = kept
        self._left_out, self._on_trial = frozenset(left_out), frozenset(on_trial)
        return replace(view, stages=tuple(stages))

    def is_over(self, now: float) -> bool:
        """Whether a time in which nobody was tried is over since the last view."""
        return (self.next_deadline() or now + 1) <= now

    def next_deadline(self) -> float | None:
        """Return when somebody on probation may be tried again."""
        waits = (one.until for one in self._closed.values() if one.until > self._looked_at)
        return min(waits, default=None)

    def _kept(self, view: SwarmView, stage: int, now: float) -> tuple[Replica, ...]:
        here = view.stages[stage]
        proven = {r.peer for r in here if self.is_proven(r.peer)}
        own = stage == self._place.stage
        if not (self._quorum.settled if own else proven):
            return here
        closed = stage in self._closed and now < self._closed[stage].until
        waiting = {r.peer for r in here if closed and r.serving} - self._on_trial
        new = [r.peer for r in here if r.peer not in proven and r.peer not in waiting]
        if own:
            new = [peer for peer in new if peer in self._admitted]
        else:
            new.sort(key=lambda peer: (self._failures[peer], rank("probation", stage, peer)))
            new = new[: max(AT_LEAST, len(proven))]
        counts = proven.union(new)
        return tuple(r if r.peer in proven else self._quiet(r) for r in here if r.peer in counts)

    def _quiet(self, replica: Replica) -> Replica:
        """Return a replica without what it says of proven ones, in whatever stage."""
        others = (peer for peer in replica.missing if not self.is_proven(peer))
        return structs.replace(replica, missing=tuple(others))

    def _stages(self) -> list[int]:
        near = (self._place.stage - 1, self._place.stage, self._place.stage + 1)
        return [stage for stage in near if 0 <= stage < self._place.stages]

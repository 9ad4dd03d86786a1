"""How many microbatches a replica of the first stage keeps in flight, from what it measures.

As many as come back per second times the seconds that one is on its way (Little's law; the product
of bandwidth and delay in BBR, Cardwell et al. 2016), and a quarter more. The quarter is also how it
grows: while there are too few, more of them come back in the same time. Nothing has to probe for
the empty way, for every step begins with an empty pipeline: the shortest way of a step has hardly
waited for others.

With the one-step-delayed update that is not so: behind a full pipeline a way takes as long as all
before it, and a quarter more of that would be a quarter more in every step. There, only what began
with few others counts as a way, and the last of those counts until it is old; then few are begun
for once (as BBR probes for the round trip).

State: when each microbatch in flight began, and the best figures of the newest steps. It may not
decide who works on what.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

SPARE = 1.25
"""In flight beyond what fills the way: a quarter more."""
STEPS = 3
"""Steps whose figures count; what has become slower since is noticed after so many."""
KEPT = 30
"""Steps after which a way is measured again where it takes an empty pipeline to do so."""
LEAST_S = 1e-4


@dataclass(slots=True)
class _Best:
    """The best of one step: seconds and microbatches per second."""

    way_s: float = math.inf
    asked_s: float = math.inf
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A microbatch in flight."""

    at: float
    ended_then: int
    alone: bool
    """Whether the pipeline was as good as empty."""


class Flight:
    """Ways and rates of our own microbatches. ``now`` is monotonic seconds.

    Args:
        ahead: whether microbatches of the next step are begun before the current one is over.
    """

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead
        self._began: dict[int, _Begun] = {}
        self._ended = 0
        self._steps = deque([_Best()], KEPT)

    def start_step(self) -> None:
        """Forget what was in flight, unless it is of the step that begins; what was measured stays
        for a few steps."""
        if not self._ahead:
            self._began.clear()
        if self._steps[-1].rate:
            self._steps.append(_Best())

    def observe(
        self, in_flight: Set[int], done: Sequence[Set[int]], now: float, *, few: int = 1
    ) -> None:
        """Take the microbatches in flight and the counted ones.

        Args:
            in_flight: ids that we hold.
            done: ledgers; a microbatch is counted if it is in one of them.
            now: monotonic seconds.
            few: number in flight that do not delay each other noticeably.
        """
        for microbatch in [m for m in self._began if m not in in_flight]:
            begun = self._began.pop(microbatch)
            if any(microbatch in ledger for ledger in done):
                self._ended += 1
                self._note(begun, max(now - begun.at, LEAST_S))
        for microbatch in in_flight - self._began.keys():
            alone = not self._ahead or len(self._began) < few
            self._began[microbatch] = _Begun(now, self._ended, alone)

    def leased(self, seconds: float) -> None:
        """Note how long it took to be given work after asking for it."""
        best = self._steps[-1]
        best.asked_s = min(best.asked_s, seconds)

    def depth(self) -> int:
        """Return how many keep the way full; 0 while its length or rate is not known."""
        newest = list(self._steps)[-STEPS:]
        rate, way_s = max(best.rate for best in newest), self._way_s(newest)
        if not rate or way_s == math.inf:
            return 0
        asked_s = min(best.asked_s for best in newest)
        if asked_s < math.inf:
            way_s += asked_s
        return math.ceil(SPARE * rate * way_s - 1e-9)

    def _way_s(self, newest: Sequence[_Best]) -> float:
        """Return the shortest of the newest steps, or else that of the last one that knows any."""
        if any(best.way_s < math.inf for best in newest):
            return min(best.way_s for best in newest)
        return next((b.way_s for b in reversed(self._steps) if b.way_s < math.inf), math.inf)

    def _note(self, begun: _Begun, way_s: float) -> None:
        best = self._steps[-1]
        if begun.alone:
            best.way_s = min(best.way_s, way_s)
        best.rate = max(best.rate, (self._ended - begun.ended_then) / way_s)

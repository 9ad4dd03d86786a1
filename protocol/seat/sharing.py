"""Chooses the stage that computes next when one volunteer holds several: max-weight.

The stage with the largest rate x backlog goes first (Tassiulas & Ephremides 1992: it keeps every
queue bounded whenever any rule does), so that time goes to the stages with waiting work. A round
comes before microbatches, because the whole stage waits for its slowest member. No stage starves.

``Turns`` holds whose turn it is and how much it has running. It knows no clock and no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PASSED_OVER = 16
"""A stage that waits goes first after so many tasks of others, whatever the weights say."""
TASKS_PER_TURN = 2
"""Tasks of one stage given to its worker at once: one runs, one waits, so that the worker does not
idle while the node hears of the first. A worker that runs several at a time gets one more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One held stage's claim on compute time."""

    stage: int
    rate: float
    """Microbatches per second of computing, as measured; 0 before the first."""
    backlog: int
    """Tasks that could run now."""
    in_round: bool = False
    """The next task belongs to the closing of a step."""


def weight(claim: Claim, unmeasured_rate: float) -> float:
    """Return rate x backlog; a stage not measured yet counts with ``unmeasured_rate``."""
    return (claim.rate or unmeasured_rate) * claim.backlog


class Turns:
    """Gives turns at one processor to stages that claim it.

    ``at_once``: tasks of a stage that its worker runs at a time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._most = TASKS_PER_TURN + at_once - 1
        self._holder: int | None = None
        self._running = 0
        self._passed_over: dict[int, int] = {}

    def next(self, claims: Sequence[Claim]) -> int | None:
        """Return the stage that may give its worker one more task now, and count that task.

        None: there is no work, or what runs has to end first. Two stages never run at once, for
        both would want the whole processor.
        """
        best = self._first(claims)
        if best is None or self._running >= self._most:
            return None
        if self._running and best != self._holder:
            return None
        self.started(best)
        others = (c.stage for c in claims if c.backlog and c.stage != best)
        self._passed_over = {stage: self._passed_over.get(stage, 0) + 1 for stage in others}
        return best

    def started(self, stage: int) -> None:
        """Count a task that was given to the worker of a stage."""
        if stage != self._holder:
            self._holder, self._running = stage, 0
        self._running += 1

    def ended(self, stage: int) -> None:
        """A task of a stage is over."""
        if stage == self._holder and self._running:
            self._running -= 1

    def forget(self, stage: int) -> None:
        """A stage is not held any more; what its worker still had does not count."""
        self._passed_over.pop(stage, None)
        if stage == self._holder:
            self._holder, self._running = None, 0

    def _first(self, claims: Sequence[Claim]) -> int | None:
        waiting = [claim for claim in claims if claim.backlog > 0]
        fastest = max((claim.rate for claim in waiting), default=0.0) or 1.0

        def urgency(claim: Claim) -> tuple[bool, bool, float, int, int]:
            passed_over = self._passed_over.get(claim.stage, 0)
            starved = passed_over >= MAX_PASSED_OVER
            return starved, claim.in_round, weight(claim, fastest), passed_over, -claim.stage

        return max(waiting, key=urgency).stage if waiting else None

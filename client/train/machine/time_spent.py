"""What this volunteer does with its time, over the last steps: all of its stages together.

Its worker computes; or a round of averaging is under way, and what others send has not come; or
there is nothing to compute before another volunteer sends a boundary, a gradient or a lease. Only
time counts in which a stage is served. Pure; the clock is handed in.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from client.control.snapshot import TimeView

LEAST_STEPS: Final = 3
"""Steps that count, besides the one that is open."""
WINDOW_S: Final = 60.0
"""Of short steps as many count as take so long together."""


@dataclass(slots=True)
class _Step:
    """Seconds of one step."""

    busy_s: float = 0.0
    averaging_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def whole_s(self) -> float:
        return self.busy_s + self.averaging_s + self.waiting_s


class TimeSpent:
    """See the module's docstring; in ``compute_share`` percent of a task's time the owner lets the
    worker compute."""

    def __init__(self, compute_share: int = 100) -> None:
        self._computes = compute_share / 100
        self._tasks = 0
        """That the worker has."""
        self._averages: dict[int, bool] = {}
        """Of each stage that is served, whether a round is under way."""
        self._step, self._since = -1, 0.0
        self._steps = deque([_Step()])

    def serves(self, stage: int, step: int, now: float, *, averages: bool) -> None:
        """A stage is served at ``step``, and a round of it is under way or not."""
        self._pass(now)
        self._averages[stage] = averages
        if step != self._step:  # of several stages the first one to get there begins it
            self._step = step
            self._steps.append(_Step())
            while len(self._steps) > LEAST_STEPS + 1 and self._lasts_without_oldest():
                self._steps.popleft()

    def leaves(self, stage: int, now: float) -> None:
        """A stage is not served any more."""
        self._pass(now)
        self._averages.pop(stage, None)

    def begins(self, now: float) -> None:
        """The worker gets a task."""
        self._pass(now)
        self._tasks += 1

    def ends(self, now: float) -> None:
        """The worker has done a task, or will not."""
        self._pass(now)
        self._tasks -= 1

    def shares(self, now: float) -> TimeView | None:
        """Return the shares of the last steps' time; None while no stage is served."""
        self._pass(now)
        whole_s = sum(step.whole_s for step in self._steps)
        if not self._averages or not whole_s:
            return None
        busy = sum(step.busy_s for step in self._steps) / whole_s
        return TimeView(
            computing=busy * self._computes,
            averaging=sum(step.averaging_s for step in self._steps) / whole_s,
            waiting=sum(step.waiting_s for step in self._steps) / whole_s,
            resting=busy * (1 - self._computes),
        )

    def _lasts_without_oldest(self) -> bool:
        return sum(step.whole_s for step in self._steps) - self._steps[0].whole_s >= WINDOW_S

    def _pass(self, now: float) -> None:
        """Say what the time until ``now`` was spent on."""
        passed_s, self._since = now - self._since, now
        if not self._averages:
            return
        if self._tasks:
            self._steps[-1].busy_s += passed_s
        elif any(self._averages.values()):
            self._steps[-1].averaging_s += passed_s
        else:
            self._steps[-1].waiting_s += passed_s

"""The owner's limit on computing time: after each task the worker rests in proportion.

With a share of 25 % a task that computes for one second is followed by three of rest. The rest
belongs to the task: it is answered afterwards, so partners measure the speed that the volunteer
really offers, and several stages on one machine, which take turns, keep the limit together. On a
busy machine the time spent waiting for the processor counts as rest. Holds the share.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """When a task began: by the clock, and by the processor time of its thread."""

    wall_s: float
    busy_s: float


class Throttle:
    """Rests after tasks.

    Args:
        share_percent: of the time that may be spent computing, 1 to 100.
        on_cpu: the calling thread computes itself; otherwise an accelerator does, and all the time
            that a task takes counts as computing.
    """

    def __init__(
        self,
        share_percent: int = 100,
        *,
        on_cpu: bool = True,
        wall: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share_percent / 100
        self._wall, self._busy, self._sleep = wall, busy if on_cpu else wall, sleep

    def begin(self) -> Moment:
        """Note that a task begins."""
        return Moment(self._wall(), self._busy())

    def rest(self, since: Moment) -> None:
        """Sleep until the task that began then has taken as long as its share allows."""
        due_s = (self._busy() - since.busy_s) / self._share
        rest_s = due_s - (self._wall() - since.wall_s)
        if self._share < 1 and rest_s > 0:
            self._sleep(rest_s)

"""The time that a worker may take before it counts as hung.

State: the longest time of each kind of task, in seconds.
"""

from typing import Final

from protocol.pipeline.effects import Task

UNKNOWN_S: Final = 300.0
"""For the first task of a kind: kernels are compiled and memory is touched for the first time."""
AT_LEAST_S: Final = 30.0
"""A machine that swaps, or wakes from sleep, is not hung."""
TIMES_THE_LONGEST: Final = 10.0
OPENING_S: Final = 1200.0
"""For measuring a machine, and for opening, loading or saving a stage: blocks may be compiled."""
SLOW_BYTES_PER_S: Final = 5e6
"""At which a disk takes or gives a state at least."""


class Patience:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._longest_s: dict[type[Task], float] = {}

    def note(self, task: Task, seconds: float) -> None:
        """Note the time that a task took."""
        self._longest_s[type(task)] = max(seconds, self._longest_s.get(type(task), 0.0))

    def seconds(self, task: Task) -> float:
        """Return the seconds to wait for an answer."""
        longest = self._longest_s.get(type(task))
        return UNKNOWN_S if longest is None else max(AT_LEAST_S, TIMES_THE_LONGEST * longest)


def state_s(size_bytes: int) -> float:
    """Return the seconds to wait for what makes, reads or writes a state of so many bytes."""
    return OPENING_S + size_bytes / SLOW_BYTES_PER_S

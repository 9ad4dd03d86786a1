"""The clock of a node: monotonic, and time in which the machine was suspended counts.

Python's own monotonic clock stands still meanwhile on Linux and on macOS, so a node that wakes
would take an hour-old acknowledgement for a fresh one, and a peer that has given it up for one that
has just ended. No state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import trio


def _reader() -> Callable[[], float]:
    """Return what reads the system's clock that does not stop (clock_gettime(2), on macOS (3))."""
    if sys.platform == "linux":
        return lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return lambda: time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.perf_counter


read_clock: Final = _reader()


class NodeClock(trio.abc.Clock):
    """See the module's docstring; for ``trio.run``.

    A wait that was under way when the machine was suspended ends late by what was left of it: the
    node's waits are short.
    """

    def start_clock(self) -> None:
        """Do nothing: it runs already."""

    def current_time(self) -> float:
        """Return seconds since an arbitrary moment."""
        return read_clock()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the seconds until a deadline."""
        return deadline - self.current_time()

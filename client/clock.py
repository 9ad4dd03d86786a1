"""The clock of a node: monotonic, and time in which the machine was suspended counts.

Python's own monotonic clock stands still meanwhile on Linux and on macOS, so a node that wakes
would take an hour-old acknowledgement for a fresh one, and a peer that has given it up for one that
has just ended. No state.
"""

import sys
import time
from typing import Final

import trio

_CLOCKS: Final = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}
"""The system's clock that does not stop, by its name in ``time``: clock_gettime(2) and (3)."""
_SETS: Final = {"darwin": "sudo sntp -sS time.apple.com"}
SET_CLOCK: Final = f"set the clock: {_SETS.get(sys.platform, 'sudo timedatectl set-ntp true')}"
"""Advice to whom has a wrong one."""
_NUMBER: Final = getattr(time, _CLOCKS.get(sys.platform, ""), None)


def read_clock() -> float:
    """Return seconds since an arbitrary moment, suspended time included where the system knows."""
    return time.perf_counter() if _NUMBER is None else time.clock_gettime(_NUMBER)


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

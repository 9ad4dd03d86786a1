"""How much of a circuit's window a relay opens: as much as half a second of its rate takes.

What a relay holds delays what comes behind it: a heartbeat behind 256 KiB is four seconds late at
60 kB/s, and its sender counts as dead. So on a slow circuit part of the window stays closed. A fast
one has it all. State: the bytes kept back, and the rate. The clock is passed in.
"""

from __future__ import annotations

from typing import Final

WINDOW_BYTES: Final = 256 * 1024
"""Of a fresh stream: the most that is held."""
LEAST_BYTES: Final = 96 * 1024
"""Stays open. Windows are opened by quarters, so less could close one for good."""
HELD_S: Final = 0.5
MEASURE_S: Final = 0.25
FADE: Final = 0.8
"""Of the rate, from one measurement to the next: a short pause says little of the line."""


class Holding:
    """See the module's docstring; of one direction of a circuit."""

    def __init__(self, now: float) -> None:
        self._kept_bytes, self._open_bytes = 0, WINDOW_BYTES
        self._rate = 0.0  # bytes/s
        self._since, self._moved_bytes = now, 0

    def passed(self, size_bytes: int, now: float) -> int:
        """Count bytes that were passed on; return those by which to open the window."""
        self._moved_bytes += size_bytes
        if (elapsed_s := now - self._since) >= MEASURE_S:
            self._rate = max(self._moved_bytes / elapsed_s, FADE * self._rate)
            self._open_bytes = min(WINDOW_BYTES, max(LEAST_BYTES, int(HELD_S * self._rate)))
            self._since, self._moved_bytes = now, 0
        self._kept_bytes += size_bytes
        opened = max(0, self._kept_bytes - (WINDOW_BYTES - self._open_bytes))
        self._kept_bytes -= opened
        return opened

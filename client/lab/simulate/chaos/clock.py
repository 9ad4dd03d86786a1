"""A volunteer's monotonic clock, with a random start and a speed of its own."""

from __future__ import annotations


class Clock:
    """Maps virtual seconds of the world to the seconds that one machine reads, and back.

    State: a point at which both are known, and the rate since then. It never runs backwards.
    """

    def __init__(self, offset_s: float, rate: float) -> None:
        self._world, self._read, self._rate = 0.0, offset_s, rate

    def read(self, world_s: float) -> float:
        """Return the machine's reading at a moment of the world."""
        return self._read + (world_s - self._world) * self._rate

    def when(self, read_s: float) -> float:
        """Return the moment of the world at which the machine reads ``read_s``."""
        return self._world + (read_s - self._read) / self._rate

    def set_rate(self, rate: float, world_s: float) -> None:
        """Run at another speed from now on."""
        self._read, self._world, self._rate = self.read(world_s), world_s, rate

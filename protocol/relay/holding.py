"""How large a circuit's window at a relay is: what its line has in flight, and a little to hold.

What a relay holds delays what comes behind it: a heartbeat behind 256 KiB is four seconds late at
60 kB/s, and its sender counts as dead. So a circuit may have as much waiting here as half a second
of its rate takes, and less than 256 KiB. What is still on its way from the sender to the relay
waits nowhere, but it needs window, too: the rate times the round trip. A slow circuit's window is
smaller than a fresh one, a fast one's over a long line is larger.

If the far side stops in that moment, what was on its way is held as well. So windows grow beyond
their start only out of one ``Room`` of all circuits: that is what this costs a relay at most.

State: the window, and the rate. The clock is passed in.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from protocol.pace import LOOK_S

WINDOW_BYTES: Final = 256 * 1024
"""Of a fresh stream."""
WAITS_BYTES: Final = 192 * 1024
"""The most that is to wait here, beyond what is on its way: a line's rate is never quite even."""
LEAST_BYTES: Final = 96 * 1024
"""Stays open. Windows are opened by quarters, so less could close one for good."""
MOST_BYTES: Final = 4 * 1024 * 1024
LONGEST_TRIP_S: Final = 0.3
"""Whoever answers later gets no more window for it."""
TRIPS: Final = 40
"""The shortest round trip counts of the last ten seconds: the others have waited somewhere."""
FADE: Final = 0.8
"""Of the rate, from one measurement to the next: a short pause says little of the line."""


@dataclass
class Room:
    """What some windows may have beyond their start: of all circuits 100 Mb/s over 1.3 s."""

    left_bytes: int = 16 * 1024 * 1024

    def take(self, wanted_bytes: int) -> int:
        """Take up to so many bytes, or give some back; return the bytes taken."""
        taken = min(wanted_bytes, self.left_bytes)
        self.left_bytes -= taken
        return taken


class Holding:
    """See the module's docstring; of one direction of a circuit."""

    def __init__(self, room: Room, now: float) -> None:
        self._room = room
        self._extra_bytes = 0  # of the window, taken of the room
        self._wanted_bytes = self._window_bytes = WINDOW_BYTES
        self._rate = 0.0  # bytes/s
        self._trips: deque[float] = deque(maxlen=TRIPS)
        self._since, self._moved_bytes = now, 0

    def passed(self, size_bytes: int, trip_s: float, now: float) -> int:
        """Count bytes that were passed on, over a round trip to their sender of so many seconds;
        return those by which to open the window. ``now`` is monotonic seconds."""
        self._moved_bytes += size_bytes
        if (elapsed_s := now - self._since) >= LOOK_S / 2:
            self._rate = max(self._moved_bytes / elapsed_s, FADE * self._rate)
            self._trips.append(trip_s)
            self._wanted_bytes = _window(self._rate, min(self._trips))
            self._since, self._moved_bytes = now, 0
        left = self._window_bytes - size_bytes
        self._take(max(left, self._wanted_bytes) - WINDOW_BYTES)
        opened = max(0, min(self._wanted_bytes, WINDOW_BYTES + self._extra_bytes) - left)
        self._window_bytes = left + opened
        return opened

    def close(self) -> None:
        """Give back what was taken of the room."""
        self._take(0)

    def _take(self, extra_bytes: int) -> None:
        """Have so much of the room, or as much as there is."""
        self._extra_bytes += self._room.take(max(0, extra_bytes) - self._extra_bytes)


def _window(rate: float, trip_s: float) -> int:
    half_a_second = int(LOOK_S * rate)  # does not yet make a heartbeat late
    on_its_way = int(rate * min(max(0.0, trip_s), LONGEST_TRIP_S))
    long = min(WAITS_BYTES, half_a_second) + on_its_way
    return max(LEAST_BYTES, min(WINDOW_BYTES, half_a_second), min(MOST_BYTES, long))

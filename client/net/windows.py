"""Receive windows that grow to the bandwidth-delay product, within a budget.

A stream's window starts at the 256 KiB that Yamux fixes. While its reader keeps up, it grows to
twice the data that arrives in one round trip, so that it does not limit the line. Grants to all
streams of a connection beyond their start come out of one budget, which bounds the memory a peer
can make us hold, however fast or far away it claims to be. Sans-IO: the clock is passed in.
"""

from protocol.errors import RemoteProtocolError
from protocol.relay.holding import Room

INITIAL_WINDOW_BYTES = 256 * 1024
"""Both windows of a fresh stream, fixed by the protocol."""
MIN_TRIP_S = 0.02
"""Shorter round trips are dominated by the time that a busy machine takes to answer."""
RETURN_SHARE = 4
"""Share of a window to be free before an update: the other three quarters keep the line busy."""


class ReceiveWindow:
    """One stream's window.

    Attributes:
        granted_bytes: bytes that the peer may have in flight and in the buffer together.
        open_bytes: bytes that it may send now.
        most_bytes: largest size of the window.
    """

    def __init__(self, budget: Room, now: float) -> None:
        self._budget = budget
        self.granted_bytes = self.open_bytes = self.most_bytes = INITIAL_WINDOW_BYTES
        self._owed_bytes = 0  # taken by the reader and not yet given back
        self._measured_from, self._measured_bytes = now, 0

    def charge(self, size_bytes: int) -> None:
        """Count announced data, before any of it is kept. Raises RemoteProtocolError: more than was
        granted."""
        if size_bytes > self.open_bytes:
            raise RemoteProtocolError("window-exceeded", f"{size_bytes} bytes", penalty=50)
        self.open_bytes -= size_bytes

    def take(self, size_bytes: int, trip_s: float, now: float) -> int:
        """Count data that the reader took; return the bytes by which to open the window, 0: it need
        not be yet. ``trip_s`` is the round trip."""
        self._owed_bytes += size_bytes
        self._measured_bytes += size_bytes
        if self._owed_bytes * RETURN_SHARE < self.granted_bytes:
            return 0
        increment = self._owed_bytes + self._growth(max(trip_s, MIN_TRIP_S), now)
        self._owed_bytes = 0
        self.open_bytes += increment
        return increment

    def close(self) -> None:
        """Give the budget back; nothing more will be granted."""
        self._budget.take(INITIAL_WINDOW_BYTES - self.granted_bytes)
        self.granted_bytes = self.most_bytes = INITIAL_WINDOW_BYTES

    def _growth(self, trip_s: float, now: float) -> int:
        """Return the missing bytes of the window, once in a round trip."""
        elapsed_s = now - self._measured_from
        if elapsed_s < trip_s:
            return 0
        wanted = 2 * self._measured_bytes * trip_s / elapsed_s
        self._measured_from, self._measured_bytes = now, 0
        if wanted <= self.granted_bytes:
            return 0
        lacking = min(2 * self.granted_bytes, self.most_bytes) - self.granted_bytes
        extra = self._budget.take(lacking)
        self.granted_bytes += extra
        return extra

"""Limits unfinished frames: the bytes they may hold, and the time they may take.

A peer may announce a large frame and never finish it. Inside a frame a lane waits for 60 s; the
time runs only while no data is ready to be read, so that neither our own pacing nor a busy client
counts against the sender, and received data earns time back. All connections share a budget of
bytes; when it is exceeded, the oldest unfinished frame is dropped with its connection: idle holders
do not shut out a newcomer, and an honest frame is seldom the oldest.

State: for each lane, the patience left; for the network, the bytes that lanes hold, oldest frame
first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from client.net.yamux import FLOOR_BYTES_PER_S, YamuxStream
from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.wire.framing import Buffer

PATIENCE_S = 60.0
"""The time of a sender that writes eight lanes in turn, half a megabyte each, at 70 kB/s."""
BUDGET_BYTES = 512 * 1024 * 1024
"""For usual frames: hundreds of them."""
LARGE_FRAMES = 4
"""Of the largest frames so many always have room: what a replica is sent and gives back at a time.
"""

LEAST_BUDGET_BYTES = 32 * 1024 * 1024
USUAL_FRAMES = 32
"""Usual frames that may be in flight: a round has 32 members."""


class UnfinishedFrames:
    """The bytes of unfinished frames that the lanes of one network hold."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self.payload_limit = limits.USUAL_PAYLOAD_BYTES
        """Most bytes of any payload."""
        self._held: dict[Arrival, int] = {}  # the frame begun first comes first
        self.held_bytes = 0

    def expect(self, largest_bytes: int, usual_bytes: int) -> None:
        """Take frames only as the run needs them. See `Libp2pNetwork.expect_payloads`."""
        self.payload_limit = min(largest_bytes, limits.MAX_PAYLOAD_BYTES)
        wanted = max(LEAST_BUDGET_BYTES, USUAL_FRAMES * usual_bytes)
        self._budget_bytes = max(min(wanted, BUDGET_BYTES), LARGE_FRAMES * self.payload_limit)

    @contextmanager
    def lane(self, evict: Callable[[], None]) -> Iterator[Arrival]:
        """Encloses the reading of one lane; ``evict`` has to end it."""
        arrival = Arrival(self, evict)
        try:
            yield arrival
        finally:
            self.hold(arrival, 0)

    def hold(self, arrival: Arrival, size_bytes: int) -> None:
        """Note the bytes that a lane holds now (0: between two frames), and make room for them."""
        self.held_bytes += size_bytes - self._held.get(arrival, 0)
        if size_bytes:
            self._held[arrival] = size_bytes
        else:
            self._held.pop(arrival, None)
        while self.held_bytes > self._budget_bytes:
            oldest = next(iter(self._held))
            self.held_bytes -= self._held.pop(oldest)
            oldest.evict()


class Arrival:
    """The frames of one lane as they come. Made by `UnfinishedFrames.lane`."""

    def __init__(self, all_lanes: UnfinishedFrames, evict: Callable[[], None]) -> None:
        self._all = all_lanes
        self.evict = evict
        self._patience_s = PATIENCE_S
        self._inside = False

    async def receive_some(self, stream: YamuxStream) -> Buffer:
        """Wait for the next piece of the stream; empty at its end.

        Raises:
            RemoteProtocolError: it takes too long.
            StreamReset, ConnectionLost: as the stream's own.
        """
        if not self._inside:
            return await stream.receive_some()
        began = trio.current_time()
        with trio.move_on_after(self._patience_s):
            data = await stream.receive_some()
            self._patience_s = max(0.0, self._patience_s - (trio.current_time() - began))
            return data
        raise RemoteProtocolError("frame-too-slow", penalty=10)

    def took(self, size_bytes: int, *, completed: bool, held_bytes: int) -> None:
        """Note a piece that was read: whether a frame ended in it, and the bytes held now of the
        frame that has not ended."""
        earned_s = size_bytes / FLOOR_BYTES_PER_S
        self._patience_s = PATIENCE_S if completed else min(PATIENCE_S, self._patience_s + earned_s)
        self._inside = held_bytes > 0
        if completed:
            self._all.hold(self, 0)  # the next one is younger
        self._all.hold(self, held_bytes)

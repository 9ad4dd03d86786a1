"""One Yamux stream: its receive buffer and the two windows that bound the data in flight.

The stream decides what may be sent and what may be received; the session (`yamux.py`) moves the
frames. Memory: at most twice the window that was granted to the peer, checked when a frame
*announces* its data. It does not use the channel, and knows only the `Session` protocol of its
session.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import trio

from client.net.errors import ConnectionLost, StreamReset
from client.net.pacing import Pace
from client.net.secure import MAX_PLAINTEXT_BYTES
from client.net.transport import Buffer
from client.net.windows import INITIAL_WINDOW_BYTES, ReceiveWindow, WindowBudget
from protocol.errors import RemoteProtocolError

HEADER = struct.Struct(">BBHII")
"""Version 0, type, flags, stream id, and length (or increment, nonce, reason)."""
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
FLOOR_BYTES_PER_S = 4000
"""32 kbit/s; a slower reader earns no extra time."""
KEPT_BYTES = MAX_PLAINTEXT_BYTES // 2
"""Least size of data that is kept where it was decrypted; less is copied, so that a few bytes never
keep a whole Noise message alive."""


class Session(Protocol):
    """The part of a session that a stream uses."""

    closed: bool
    budget: WindowBudget

    @property
    def trip_s(self) -> float:
        """The round trip as far as it is known."""
        ...

    @property
    def slice_bytes(self) -> int:
        """Most data of one frame, now: nothing overtakes a frame once it is being written."""
        ...

    async def write(self, frame: Sequence[Buffer], *, urgent: bool) -> None: ...
    def reply(self, frame: bytes) -> None: ...
    def measure_trip(self) -> None: ...
    def forget_if_done(self, stream: YamuxStream) -> None: ...


class YamuxStream:
    """One stream. One task may send and one may receive at a time.

    Args:
        session: the session of the stream.
        stream_id: its number there.
        urgent: whether its frames are sent before those of other streams.
    """

    def __init__(self, session: Session, stream_id: int, *, urgent: bool = False) -> None:
        self._session = session
        self._urgent = urgent
        self.stream_id = stream_id
        self._send_window = INITIAL_WINDOW_BYTES
        self._window_opened = trio.Event()
        self._chunks: deque[Buffer] = deque()
        self._data_came = trio.Event()
        self._window = ReceiveWindow(session.budget, trio.current_time())
        self.buffered_bytes = 0
        """Bytes received and not yet taken."""
        self.sent_bytes = 0
        """Bytes handed to the connection."""
        self._reset = False
        self._remote_done = False
        self._local_done = False

    @property
    def window_bytes(self) -> int:
        """Bytes that the peer may have in flight and in the buffer together."""
        return self._window.granted_bytes

    @property
    def trip_s(self) -> float:
        """The round trip of its connection, as last measured."""
        return self._session.trip_s

    def let_window_grow(self, most_bytes: int) -> None:
        """Let the window follow the line, as far as the session's budget goes."""
        self._window.most_bytes = max(most_bytes, INITIAL_WINDOW_BYTES)

    async def send_all(
        self, buffers: Sequence[Buffer], stall_s: float = math.inf, pace: Pace | None = None
    ) -> None:
        """Send the buffers in order, waiting for the peer's window where needed.

        Args:
            buffers: not copied as a whole, so they must not change meanwhile.
            stall_s: give up when the peer has stalled for so long; data it takes earns time back at
                ``FLOOR_BYTES_PER_S``, so a byte now and then is no progress.
            pace: waits until a number of bytes may be sent.

        Raises:
            StreamReset, ConnectionLost: the stream or its connection ended.
            trio.TooSlowError: stalled; part of the data may have been sent.
        """
        source = [memoryview(buffer).cast("B") for buffer in buffers]
        source.reverse()
        left, patience_s = sum(map(len, source)), stall_s
        while left:
            began = trio.current_time()
            with trio.fail_after(patience_s):
                await self._wait_for_window()
            patience_s -= trio.current_time() - began
            taken = min(left, self._send_window, self._session.slice_bytes)
            self._send_window -= taken
            left -= taken
            frame: list[Buffer] = [self._frame(DATA, 0, taken), *_take(source, taken)]
            if pace is not None:
                await pace(taken + HEADER.size)
            began = trio.current_time()
            with trio.fail_after(max(0.0, patience_s)):
                await self._session.write(frame, urgent=self._urgent)
            patience_s -= trio.current_time() - began
            patience_s = min(stall_s, patience_s + taken / FLOOR_BYTES_PER_S)
            self.sent_bytes += taken

    async def receive_some(self, most: int | None = None) -> Buffer:
        """Wait for data and return the next piece, at most ``most`` bytes; empty at the end.

        Other tasks get their turn even if data is here already.

        Raises:
            StreamReset, ConnectionLost: the stream or its connection ended early.
        """
        await self._wait_for_data()
        return self.receive_nowait(most)

    def receive_nowait(self, most: int | None = None) -> Buffer:
        """Take the next piece of what has been received, perhaps nothing."""
        taken = self._pop(most)
        if taken:
            self.release(len(taken), len(taken))
        return taken

    async def receive_held(self, most: int) -> Buffer:
        """Receive a piece whose bytes stay in our window until ``release`` opens it."""
        await self._wait_for_data()
        return self._pop(most)

    def release(self, size_bytes: int, opened_bytes: int) -> None:
        """Forget bytes received by ``receive_held``, and let the peer send so many more."""
        if not self._reset:
            self.buffered_bytes -= size_bytes
            self._return_credit(opened_bytes)

    async def receive_up_to(self, most: int) -> bytes:
        """Wait for data and return up to ``most`` bytes of it; empty at the end of the stream."""
        await self._wait_for_data()
        return bytes(self.receive_nowait(most))

    def send_eof(self) -> None:
        """Signal the end of our data; receiving continues."""
        if not self._local_done and not self._reset:
            self._local_done = True
            self._session.reply(self._frame(WINDOW_UPDATE, FIN, 0))
            self._session.forget_if_done(self)

    def reset(self) -> None:
        """End the stream at once, in both directions."""
        if not self._reset:
            self._session.reply(self._frame(WINDOW_UPDATE, RST, 0))
            self.on_reset()

    # Called by the session when a frame arrives.

    def on_data(self, data: memoryview) -> None:
        """Keep data that was charged; the memory behind it must not change any more."""
        self.buffered_bytes += len(data)
        self._data_came.set()
        if len(data) >= KEPT_BYTES:
            self._chunks.append(data)
            return
        last = self._chunks[-1] if self._chunks else None
        if isinstance(last, bytearray) and len(last) < MAX_PLAINTEXT_BYTES:
            last += data
        else:
            self._chunks.append(bytearray(data))

    def charge(self, size: int) -> None:
        """Count announced data against the window, before any of it is kept."""
        if size and self._remote_done:
            raise RemoteProtocolError("data-after-end", f"stream {self.stream_id}", penalty=50)
        self._window.charge(size)

    def on_window(self, increment: int) -> None:
        self._send_window = min(self._send_window + increment, 2**32 - 1)
        self._window_opened.set()

    def on_fin(self) -> None:
        self._remote_done = True
        self._data_came.set()
        self._session.forget_if_done(self)

    def on_reset(self) -> None:
        self._reset = True
        self._chunks.clear()
        self.buffered_bytes = 0
        self.wake()
        self._session.forget_if_done(self)

    def close(self) -> None:
        """Give back what was granted; the session has forgotten the stream."""
        self._window.close()

    def wake(self) -> None:
        """Wake waiting tasks to check the state again."""
        self._data_came.set()
        self._window_opened.set()

    @property
    def done(self) -> bool:
        """Nothing more can happen on this stream."""
        return self._reset or (self._remote_done and self._local_done)

    def _pop(self, most: int | None) -> Buffer:
        if not self._chunks:
            return b""
        taken = self._chunks.popleft()
        if most is not None and most < len(taken):
            view = memoryview(taken)
            self._chunks.appendleft(view[most:])
            taken = view[:most]
        return taken

    def _check_alive(self) -> None:
        if self._reset:
            raise StreamReset(f"stream {self.stream_id} was reset")
        if self._session.closed:
            raise ConnectionLost("the connection ended")

    async def _wait_for_data(self) -> None:
        if self._chunks:
            await trio.lowlevel.checkpoint()
        while not self._chunks:
            self._check_alive()
            if self._remote_done:
                return
            self._data_came = trio.Event()
            await self._data_came.wait()

    async def _wait_for_window(self) -> None:
        self._check_alive()
        if self._local_done:
            raise StreamReset(f"stream {self.stream_id} is closed for sending")
        while not self._send_window:
            self._window_opened = trio.Event()
            await self._window_opened.wait()
            self._check_alive()

    def _return_credit(self, size: int) -> None:
        """Open the window by the bytes taken, in few updates."""
        if self._remote_done or self._reset:
            return
        if increment := self._window.take(size, self._session.trip_s, trio.current_time()):
            self._session.reply(self._frame(WINDOW_UPDATE, 0, increment))
            self._session.measure_trip()

    def _frame(self, kind: int, flags: int, length: int) -> bytes:
        return HEADER.pack(0, kind, flags, self.stream_id, length)


def _take(source: list[memoryview], size: int) -> Iterator[memoryview]:
    """Remove ``size`` bytes from the buffers in ``source``, beginning with the last one."""
    while size:
        view = source.pop()
        if len(view) > size:
            source.append(view[size:])
            view = view[:size]
        size -= len(view)
        yield view

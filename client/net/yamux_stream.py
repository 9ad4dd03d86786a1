"""One Yamux stream: its receive buffer and the two windows that bound what is on its way.

The stream decides what may be sent and what may be received; the session (`yamux.py`) moves the
frames. Memory: at most the window that was granted to the peer, checked when a frame *announces*
its data. It may not touch the channel, and knows of its session only the `Session` protocol.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

import trio

from client.net.errors import ConnectionLost, StreamReset
from client.net.pacing import Pace
from client.net.secure import MAX_PLAINTEXT_BYTES
from protocol.errors import RemoteProtocolError

HEADER = struct.Struct(">BBHII")
"""Version 0, type, flags, stream id, and length (or increment, nonce, reason)."""
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
INITIAL_WINDOW_BYTES = 256 * 1024
"""Both windows of a fresh stream, fixed by the protocol."""
CHUNK_BYTES = MAX_PLAINTEXT_BYTES - HEADER.size
"""Data of one frame: with its header it fills one Noise message exactly."""
BATCH_FRAMES = 4
"""Frames of one write: enough to be cheap, and few enough that another stream waits for little."""
Buffer = bytes | bytearray | memoryview


class Session(Protocol):
    """What a stream needs of its session."""

    closed: bool

    async def write(self, plaintexts: Sequence[bytes]) -> None: ...
    def reply(self, frame: bytes) -> None: ...
    def forget_if_done(self, stream: YamuxStream) -> None: ...


class YamuxStream:
    """One stream. One task may send and one may receive at a time."""

    def __init__(self, session: Session, stream_id: int) -> None:
        self._session = session
        self.stream_id = stream_id
        self._send_window = INITIAL_WINDOW_BYTES
        self._window_opened = trio.Event()
        self._buffer = bytearray()
        self._data_came = trio.Event()
        self._granted = INITIAL_WINDOW_BYTES  # the window the peer is kept at
        self._receive_window = INITIAL_WINDOW_BYTES  # what it may send now
        self._reset = False
        self._remote_done = False
        self._local_done = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes received and not yet taken."""
        return len(self._buffer)

    def raise_window(self, window_bytes: int) -> None:
        """Let the peer have up to ``window_bytes`` on their way or in the buffer."""
        extra = window_bytes - self._granted
        if extra > 0:
            self._granted += extra
            self._grant(extra)

    async def send_all(
        self, buffers: Sequence[Buffer], stall_s: float = math.inf, pace: Pace | None = None
    ) -> None:
        """Send the buffers in order, waiting for the peer's window where needed.

        Args:
            buffers: not copied as a whole, so they must not change meanwhile.
            stall_s: give up when the peer grants no window or takes nothing for so long.
            pace: waits until so many bytes may go.

        Raises:
            StreamReset, ConnectionLost: the stream or its connection ended.
            trio.TooSlowError: stalled; part of the data may have been sent.
        """
        pieces = _pieces(buffers)
        piece = next(pieces, None)
        while piece is not None:
            batch: list[bytes] = []
            with trio.fail_after(stall_s):
                await self._wait_for_window()
                while piece is not None and len(batch) < BATCH_FRAMES:
                    if not (taken := min(len(piece), self._send_window)):
                        break
                    self._send_window -= taken
                    batch.append(self._frame(DATA, 0, taken) + piece[:taken])
                    piece = piece[taken:] if taken < len(piece) else next(pieces, None)
            if pace is not None:
                await pace(sum(map(len, batch)))
            with trio.fail_after(stall_s):
                await self._session.write(batch)

    async def receive_some(self, most: int | None = None) -> bytearray:
        """Wait for data and return all of it, at most ``most`` bytes; empty at the end.

        Raises:
            StreamReset, ConnectionLost: the stream or its connection ended early.
        """
        await self._wait_for_data()
        return self.receive_nowait(most)

    def receive_nowait(self, most: int | None = None) -> bytearray:
        """Take what has been received, at most ``most`` bytes, perhaps nothing."""
        if most is None or most >= len(self._buffer):
            taken, self._buffer = self._buffer, bytearray()
        else:
            taken = self._buffer[:most]
            del self._buffer[:most]
        self._return_credit()
        return taken

    async def receive_up_to(self, most: int) -> bytes:
        """Wait for data and return up to ``most`` bytes of it; empty at the end of the stream."""
        await self._wait_for_data()
        return bytes(self.receive_nowait(most))

    def send_eof(self) -> None:
        """Tell the peer that nothing more comes; receiving goes on."""
        if not self._local_done and not self._reset:
            self._local_done = True
            self._session.reply(self._frame(WINDOW_UPDATE, FIN, 0))
            self._session.forget_if_done(self)

    def reset(self) -> None:
        """End the stream at once, in both directions."""
        if not self._reset:
            self._session.reply(self._frame(WINDOW_UPDATE, RST, 0))
            self.on_reset()

    # What the session calls when a frame arrives.

    def on_data(self, data: memoryview) -> None:
        self._buffer += data
        self._data_came.set()

    def charge(self, size: int) -> None:
        """Count announced data against the window, before any of it is kept."""
        if size > self._receive_window:
            raise RemoteProtocolError("window-exceeded", f"stream {self.stream_id}", penalty=50)
        self._receive_window -= size

    def on_window(self, increment: int) -> None:
        self._send_window = min(self._send_window + increment, 2**32 - 1)
        self._window_opened.set()

    def on_fin(self) -> None:
        self._remote_done = True
        self._data_came.set()
        self._session.forget_if_done(self)

    def on_reset(self) -> None:
        self._reset = True
        self._buffer = bytearray()
        self.wake()
        self._session.forget_if_done(self)

    def wake(self) -> None:
        """Let waiting tasks look at the state again."""
        self._data_came.set()
        self._window_opened.set()

    @property
    def done(self) -> bool:
        """Nothing more can happen on this stream."""
        return self._reset or (self._remote_done and self._local_done)

    def _check_alive(self) -> None:
        if self._reset:
            raise StreamReset(f"stream {self.stream_id} was reset")
        if self._session.closed:
            raise ConnectionLost("the connection ended")

    async def _wait_for_data(self) -> None:
        while not self._buffer:
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

    def _return_credit(self) -> None:
        """Restore the window once half of it is free, so that updates stay rare."""
        free = self._granted - self._receive_window - len(self._buffer)
        if free >= self._granted // 2 and not (self._remote_done or self._reset):
            self._grant(free)

    def _grant(self, increment: int) -> None:
        self._receive_window += increment
        self._session.reply(self._frame(WINDOW_UPDATE, 0, increment))

    def _frame(self, kind: int, flags: int, length: int) -> bytes:
        return HEADER.pack(0, kind, flags, self.stream_id, length)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """Cut buffers into pieces that fill a frame, joining small ones with what follows them."""
    small: list[memoryview] = []
    room = CHUNK_BYTES
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view:
            small.append(view[:room])
            view, room = view[room:], room - min(room, len(view))
            if not room:
                yield memoryview(b"".join(small)) if len(small) > 1 else small[0]
                small, room = [], CHUNK_BYTES
    if small:
        yield memoryview(b"".join(small)) if len(small) > 1 else small[0]

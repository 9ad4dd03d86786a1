"""Yamux: many streams over one secure channel, with every window enforced.

The wire protocol of hashicorp/yamux (spec.md), as libp2p uses it. The library's own implementation
buffers whatever a peer sends (234 MiB were put on one stream), kills a writer that waits 5 s for a
window, polls for windows every 10 ms, and cuts frames so that each costs two Noise messages.

State of a session: its streams, by id; of a stream: its receive buffer and both windows. The stream
decides what may be sent and what may be received; the session moves the frames. Memory:
a peer can make a session hold at most twice the sum of the windows it was granted, which a budget
bounds; sending more is a violation that ends the session. Reading must not block on writing (two
readers that wait for each other's writes would deadlock), so one task writes all frames: replies
first, then urgent ones, then the others, each in order. A frame that was begun is finished even if
its sender gives up, for half a frame would end the connection. What is urgent overtakes the rest
between two frames, so frames are short on a slow line, and long where their overhead costs more
than the line does.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from client.net.errors import ConnectionLost, StreamReset
from client.net.pacing import Pace
from client.net.secure import MAX_PLAINTEXT_BYTES, SecureChannel
from client.net.transport import Buffer, ByteStream
from client.net.windows import INITIAL_WINDOW_BYTES, ReceiveWindow
from protocol.errors import RemoteProtocolError
from protocol.relay.holding import Room
from protocol.token_bucket import TokenBucket

HEADER = struct.Struct(">BBHII")
"""Version 0, type, flags, stream id, and length (or increment, nonce, reason)."""
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
FLOOR_BYTES_PER_S = 4000
"""32 kbit/s; a slower reader earns no extra time."""
KEPT_BYTES = MAX_PLAINTEXT_BYTES // 2
"""Least size of data that is kept where it was decrypted; less is copied, so that a few bytes never
keep a whole Noise message alive."""

MAX_REPLY_BYTES = 64 * 1024
"""Replies (pongs, window updates, resets) that may wait to be sent: 5461 frames."""
SLICE_S = 0.004
"""Write time of a frame above which the next one is shorter."""
LEAST_SLICE_BYTES = 8 * 1024
"""A line that is shared with a dozen others may be slower; shorter frames would cost more work."""
MOST_SLICE_BYTES = 8 * MAX_PLAINTEXT_BYTES
GROWTH = 1.25
"""Of a frame after one that took no time: it may only have filled the kernel's queue."""
TRIP_S = 0.1
"""The assumed round trip, until one has been measured."""
GO_AWAY_S = 0.5
"""For ending a frame, and for telling the peer that we end the session; it may take nothing."""
INBOUND_STREAMS = 16
OPENED_PER_S, OPENED_BURST = 4.0, 256.0
"""Streams that a peer may open, refused ones included: each costs some 0.1 ms. Our client opens
three; others open some for `identify` and `ping`."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Bytes granted to all streams of a session beyond their first windows: 400 Mb/s over 300 ms."""


@dataclass(eq=False, slots=True)
class _Frame:
    """A frame on its way: its header and its data."""

    buffers: Sequence[Buffer]
    urgent: bool = True
    over: trio.Event = field(default_factory=trio.Event)
    """Set once it was written, or never will be."""
    written: bool = False


class YamuxSession:
    """One connection's streams. No frames move unless ``run`` is running.

    Args:
        channel: the authenticated channel; the session is its only user.
        dialler: whether this side dialled (it numbers its streams oddly).
    """

    def __init__(self, channel: SecureChannel, *, dialler: bool) -> None:
        self._channel = channel
        self._next_id = 1 if dialler else 2
        self._streams: dict[int, YamuxStream] = {}
        send, receive = trio.open_memory_channel[YamuxStream](math.inf)
        self._accept_send, self._accept_receive = send, receive
        self._openings = TokenBucket(OPENED_PER_S, OPENED_BURST, trio.current_time())
        self._urgent, self._usual = deque[_Frame](), deque[_Frame]()
        self._something_waits = trio.Event()
        self._sending, self._reading = trio.CancelScope(), trio.CancelScope()
        self._slice_bytes = LEAST_SLICE_BYTES
        channel.stream.keep_unsent(self._slice_bytes)
        self.budget = Room(WINDOW_BYTES)
        self.rtt_s: float | None = None
        """Smoothed round trip of a small frame, queues included; None: none was measured."""
        self.answers = 0
        """Answers to the ping that was sent last, whenever that was."""
        self._ping, self.pinged_at, self._answered = 0, -math.inf, True
        self._replies = bytearray()
        self._header = bytearray()  # an unfinished frame header
        self._body_left = 0
        self._body_stream: YamuxStream | None = None
        self._body_flags = 0
        self._frames_taken = 0
        self.inbound_streams = INBOUND_STREAMS
        """Streams that the peer may have open."""
        self.intake: Callable[[int, int], Awaitable[None]] | None = None
        """Told of the bytes and frames that were read, waits until more may be."""
        self.closed = self._torn = False
        self.violation: RemoteProtocolError | None = None
        """The rule that the peer broke, if that has ended it; known before anybody sees the end."""
        self.told_to_go = False
        """Whether the peer has said that it ends the session: its process lives."""

    async def run(self) -> None:
        """Process frames until the connection ends or the peer breaks a rule.

        Raises:
            RemoteProtocolError: the peer broke a rule of Noise or Yamux.
            ConnectionLost: the connection broke.
        """
        lost: ConnectionLost | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_frames)
            try:
                with self._reading:
                    await self._receive_frames()
            except RemoteProtocolError as error:
                self.violation = error
            except ConnectionLost as error:
                lost = error
            finally:
                self._close()
                nursery.cancel_scope.cancel()
        if failure := self.violation or lost:
            raise failure

    @property
    def slice_bytes(self) -> int:
        """Most data of one frame, which with its header fills whole Noise messages, or a part."""
        whole = self._slice_bytes // MAX_PLAINTEXT_BYTES * MAX_PLAINTEXT_BYTES
        return (whole or self._slice_bytes) - HEADER.size

    async def go_away(self) -> None:
        """Tell the peer that we have ended the session, once ``run`` is over. A process that dies
        does not say so."""
        if not self._torn:
            with suppress(ConnectionLost), trio.move_on_after(GO_AWAY_S):
                await self._channel.send_all([HEADER.pack(0, GO_AWAY, 0, 0, 0)])

    async def open_stream(self, *, urgent: bool = False) -> YamuxStream:
        """Open a stream to the peer; raises ConnectionLost when the session has ended."""
        stream = YamuxStream(self, self._next_id, urgent=urgent)
        self._next_id += 2
        self._streams[stream.stream_id] = stream
        try:
            await self.write([HEADER.pack(0, WINDOW_UPDATE, SYN, stream.stream_id, 0)], urgent=True)
        except BaseException:
            stream.reset()  # the peer may hear of it
            raise
        return stream

    async def accept_stream(self) -> YamuxStream:
        """Wait for the peer to open a stream; raises ConnectionLost when the session has ended."""
        try:
            return await self._accept_receive.receive()
        except trio.EndOfChannel as error:
            raise ConnectionLost("the connection ended") from error

    async def write(self, frame: Sequence[Buffer], *, urgent: bool) -> None:
        """Have a frame written when it is its turn; urgent ones go before others."""
        if self.closed:
            raise ConnectionLost("the connection ended")
        waiting, queue = _Frame(frame, urgent), self._urgent if urgent else self._usual
        queue.append(waiting)
        self._something_waits.set()
        try:
            await waiting.over.wait()
        finally:
            if waiting in queue:
                queue.remove(waiting)
        if not waiting.written:
            raise ConnectionLost("the connection ended")

    async def _write_frames(self) -> None:
        while not self.closed:
            frame = self._next_frame()
            if frame is None:
                self._something_waits = trio.Event()
                await self._something_waits.wait()
                continue
            began = trio.current_time()
            try:
                if not frame.urgent:
                    await self._channel.stream.wait_for_room()
                await self._send(_messages(frame.buffers))
                frame.written = True
            except ConnectionLost:
                return  # the reader of the same connection reports it
            finally:
                frame.over.set()
            if not frame.urgent:
                self._fit_slices(sum(map(len, frame.buffers)), trio.current_time() - began)

    def _next_frame(self) -> _Frame | None:
        if self._replies:
            replies, self._replies = self._replies, bytearray()
            return _Frame([replies])
        waiting = self._urgent or self._usual
        return waiting.popleft() if waiting else None

    async def _send(self, messages: Iterator[Buffer]) -> None:
        complete = False
        try:
            with trio.CancelScope(shield=True) as self._sending:
                await self._channel.send_all(messages)
                complete = True
        finally:
            if not complete:  # failed, or ended, inside a frame: nothing may follow it
                self._torn = True
                self._close()
                with trio.CancelScope(shield=True):
                    await self._channel.aclose()
        if not complete:
            raise ConnectionLost("the connection ended")

    def _fit_slices(self, size_bytes: int, took_s: float) -> None:
        before = self._slice_bytes
        if took_s > SLICE_S:
            self._slice_bytes = max(LEAST_SLICE_BYTES, before // 2)
        elif took_s < SLICE_S / 4 and size_bytes > self.slice_bytes:  # a short one says nothing
            self._slice_bytes = min(MOST_SLICE_BYTES, int(GROWTH * before))
        if self._slice_bytes != before:
            self._channel.stream.keep_unsent(self._slice_bytes)

    @property
    def trip_s(self) -> float:
        """The round trip as far as it is known."""
        return TRIP_S if self.rtt_s is None else self.rtt_s

    def ping(self) -> None:
        """Ask the peer for a sign of life, which also measures the round trip."""
        self._ping, self.pinged_at = (self._ping + 1) % 2**32, trio.current_time()
        self._answered = False
        self.reply(HEADER.pack(0, PING, SYN, 0, self._ping))

    def _on_pong(self, number: int) -> None:
        if number == self._ping and not self._answered:
            self.answers, self._answered = self.answers + 1, True
            trip_s = trio.current_time() - self.pinged_at
            self.rtt_s = trip_s if self.rtt_s is None else 0.8 * self.rtt_s + 0.2 * trip_s

    def reply(self, frame: bytes) -> None:
        """Queue a frame without waiting.

        A peer that leaves too many unread ends the session; whoever replies is not to blame.
        """
        if self.closed:
            return
        if len(self._replies) + len(frame) > MAX_REPLY_BYTES:
            self.violation = RemoteProtocolError("reply-flood", penalty=50)
            self._reading.cancel()
            return
        self._replies += frame
        self._something_waits.set()

    def forget_if_done(self, stream: YamuxStream) -> None:
        """Drop the record of a stream on which nothing more can happen."""
        if stream.done and stream.stream_id in self._streams:
            self._streams.pop(stream.stream_id).close()

    def _close(self) -> None:
        self.closed = True
        self._sending.deadline = trio.current_time() + GO_AWAY_S
        self._accept_send.close()
        for stream in self._streams.values():
            stream.wake()
        for frame in (*self._urgent, *self._usual):
            frame.over.set()

    async def _receive_frames(self) -> None:
        while not self.closed and (messages := await self._channel.receive()):
            for message in messages:
                self._take(memoryview(message))
            if self.intake is not None:
                frames, self._frames_taken = self._frames_taken, 0
                await self.intake(sum(map(len, messages)), max(frames, len(messages)))

    def _take(self, view: memoryview) -> None:
        """Take the next plaintext; frames may begin and end anywhere in it."""
        while view and not self.closed:
            if self._body_left:
                taken = min(len(view), self._body_left)
                self._body_left -= taken
                if self._body_stream is not None and not self._body_stream.done:
                    self._body_stream.on_data(view[:taken])
                view = view[taken:]
                if not self._body_left:
                    self._end_body()
                continue
            missing = HEADER.size - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == HEADER.size:
                fields = HEADER.unpack(self._header)
                self._header.clear()
                self._on_frame(*fields)

    def _on_frame(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> None:
        self._frames_taken += 1
        if version != 0 or kind > GO_AWAY:
            raise RemoteProtocolError("yamux-frame", f"type {kind}", penalty=50)
        if kind == PING:
            if flags & SYN:
                self.reply(HEADER.pack(0, PING, ACK, 0, length))
            elif flags & ACK:
                self._on_pong(length)
        elif kind == GO_AWAY:
            self.told_to_go = True
            self._close()
        else:
            stream = self._on_syn(stream_id) if flags & SYN else self._streams.get(stream_id)
            if kind == DATA:
                self._begin_body(stream, flags, length)
            elif stream is not None:
                stream.on_window(length)
                self._on_end_flags(stream, flags)

    def _on_syn(self, stream_id: int) -> YamuxStream | None:
        if stream_id == 0 or stream_id % 2 == self._next_id % 2 or stream_id in self._streams:
            raise RemoteProtocolError("yamux-stream-id", str(stream_id), penalty=50)
        if not self._openings.take(1, trio.current_time()):
            raise RemoteProtocolError("stream-flood", penalty=50)
        stream = YamuxStream(self, stream_id)
        inbound = sum(1 for known in self._streams if known % 2 == stream_id % 2)
        if inbound >= self.inbound_streams:
            stream.reset()
            return None
        self._accept_send.send_nowait(stream)
        self._streams[stream_id] = stream
        self.reply(HEADER.pack(0, WINDOW_UPDATE, ACK, stream_id, 0))
        return stream

    def _begin_body(self, stream: YamuxStream | None, flags: int, length: int) -> None:
        if stream is not None:
            stream.charge(length)
        self._body_stream, self._body_flags, self._body_left = stream, flags, length
        if not length:
            self._end_body()

    def _end_body(self) -> None:
        if self._body_stream is not None:
            self._on_end_flags(self._body_stream, self._body_flags)
        self._body_stream = None

    def _on_end_flags(self, stream: YamuxStream, flags: int) -> None:
        if flags & RST:
            stream.on_reset()
        elif flags & FIN:
            stream.on_fin()


class YamuxStream(ByteStream):
    """One stream. One task may send and one may receive at a time.

    Args:
        urgent: whether its frames are sent before those of other streams.
    """

    def __init__(self, session: YamuxSession, stream_id: int, *, urgent: bool = False) -> None:
        self._session = session
        self._urgent = urgent
        self.stream_id = stream_id
        self._send_window = INITIAL_WINDOW_BYTES
        self._window_opened = trio.Event()
        self._chunks: deque[Buffer] = deque()
        self._data_came = trio.Event()
        self._window = ReceiveWindow(session.budget, trio.current_time())
        self.sent_bytes = 0
        """Bytes handed to the connection."""
        self._reset = False
        self._remote_done = False
        self._local_done = False

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
        taken = await self.receive_held(most)
        self.release(len(taken))
        return taken

    async def receive_held(self, most: int | None) -> Buffer:
        """Receive a piece that takes room in our window until ``release``."""
        await self._wait_for_data()
        if not self._chunks:
            return b""
        taken = self._chunks.popleft()
        if most is not None and most < len(taken):
            view = memoryview(taken)
            self._chunks.appendleft(view[most:])
            taken = view[:most]
        return taken

    def send_eof(self) -> None:
        """Signal the end of our data; receiving continues."""
        if not self._local_done and not self._reset:
            self._local_done = True
            self._session.reply(self._frame(WINDOW_UPDATE, FIN, 0))
            self._session.forget_if_done(self)

    def reset(self) -> None:
        """End the stream at once, in both directions."""
        if not self.done:
            self._session.reply(self._frame(WINDOW_UPDATE, RST, 0))
            self.on_reset()

    async def aclose(self) -> None:
        self.reset()
        await trio.lowlevel.checkpoint()

    # Called by the session when a frame arrives.

    def on_data(self, data: memoryview) -> None:
        """Keep data that was charged; the memory behind it must not change any more."""
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

    def release(self, size: int) -> None:
        """Let the peer send so many bytes more, in few updates."""
        if self._remote_done or self._reset:
            return
        if increment := self._window.take(size, self._session.trip_s, trio.current_time()):
            self._session.reply(self._frame(WINDOW_UPDATE, 0, increment))

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


def _messages(frame: Sequence[Buffer]) -> Iterator[Buffer]:
    """Cut a frame into Noise messages; only those that span buffers are copied."""
    parts: list[memoryview] = []
    room = MAX_PLAINTEXT_BYTES
    for buffer in frame:
        view = memoryview(buffer)
        while view:
            parts.append(view[:room])
            view, room = view[room:], room - min(room, len(view))
            if not room:
                yield _joined(parts)
                parts, room = [], MAX_PLAINTEXT_BYTES
    if parts:
        yield _joined(parts)


def _joined(parts: Sequence[memoryview]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)

"""Yamux: many streams over one secure channel, with every window enforced.

The wire protocol of hashicorp/yamux (spec.md), as libp2p uses it. The library's own implementation
buffers whatever a peer sends (234 MiB were put on one stream), kills a writer that waits 5 s for a
window, polls for windows every 10 ms, and cuts frames so that each costs two Noise messages.

State of a session: its streams, by id; of a stream: its receive buffer and both windows. Memory:
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
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from client.net.errors import ConnectionLost
from client.net.secure import MAX_PLAINTEXT_BYTES, SecureChannel
from client.net.transport import Buffer
from client.net.windows import WindowBudget
from client.net.yamux_stream import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    YamuxStream,
)
from protocol.errors import RemoteProtocolError
from protocol.token_bucket import TokenBucket

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
MEASURE_S = 2.0
"""Shortest time between measurements of the round trip."""
GO_AWAY_S = 0.5
"""For ending a frame, and for telling the peer that we end the session; it may take nothing."""


@dataclass(frozen=True)
class YamuxLimits:
    """Limits of the memory that a peer can make a session hold."""

    inbound_streams: int = 16
    pending_accepts: int = 8
    opened_per_s: float = 4.0
    opened_burst: float = 256.0
    """Streams that a peer may open, refused ones included: each costs some 0.1 ms. Our client opens
    three; others open some for `identify` and `ping`."""
    window_bytes: int = 16 * 1024 * 1024
    """Bytes granted to all streams beyond their first windows: 400 Mb/s over 300 ms."""


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
        limits: bounds on the memory that the peer can make the session hold.
    """

    def __init__(
        self, channel: SecureChannel, *, dialler: bool, limits: YamuxLimits | None = None
    ) -> None:
        self._channel = channel
        self._limits = limits or YamuxLimits()
        self._next_id = 1 if dialler else 2
        self._streams: dict[int, YamuxStream] = {}
        send, receive = trio.open_memory_channel[YamuxStream](self._limits.pending_accepts)
        self._accept_send, self._accept_receive = send, receive
        self._openings = TokenBucket(
            self._limits.opened_per_s, self._limits.opened_burst, trio.current_time()
        )
        self._urgent, self._usual = deque[_Frame](), deque[_Frame]()
        self._something_waits = trio.Event()
        self._sending, self._reading = trio.CancelScope(), trio.CancelScope()
        self._slice_bytes = LEAST_SLICE_BYTES
        channel.keep_unsent(self._slice_bytes)
        self.budget = WindowBudget(self._limits.window_bytes)
        self.rtt_s: float | None = None
        """Smoothed round trip of a small frame, queues included; None: none was measured."""
        self.answers = 0
        """Answers to the ping that was sent last, whenever that was."""
        self._ping, self._pinged_at, self._answered = 0, -math.inf, True
        self._replies = bytearray()
        self._header = bytearray()  # an unfinished frame header
        self._body_left = 0
        self._body_stream: YamuxStream | None = None
        self._body_flags = 0
        self._frames_taken = 0
        self.inbound_streams = self._limits.inbound_streams
        """Streams that the peer may have open."""
        self.intake: Callable[[int, int], Awaitable[None]] | None = None
        """Told of the bytes and frames that were read, waits until more may be."""
        self.closed = self._torn = False
        self.violation: RemoteProtocolError | None = None
        """The rule that the peer broke, if that has ended it; known before anybody sees the end."""
        self.told_to_go = False
        """Whether the peer has said that it ends the session: its process lives."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes received on all streams and not yet taken."""
        return sum(stream.buffered_bytes for stream in self._streams.values())

    async def run(self, early: Sequence[bytes] = ()) -> None:
        """Process frames until the connection ends or the peer breaks a rule.

        Args:
            early: messages that arrived with the handshake.

        Raises:
            RemoteProtocolError: the peer broke a rule of Noise or Yamux.
            ConnectionLost: the connection broke.
        """
        lost: ConnectionLost | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_frames)
            try:
                with self._reading:
                    await self._receive_frames(early)
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
                await self._channel.send([HEADER.pack(0, GO_AWAY, 0, 0, 0)])

    async def open_stream(self, *, urgent: bool = False) -> YamuxStream:
        """Open a stream to the peer.

        Args:
            urgent: its frames are sent before those of other streams.

        Raises:
            ConnectionLost: the session has ended.
        """
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
        """Have a frame written when it is its turn. Only streams and the session call this.

        Args:
            frame: its header and its data.
            urgent: whether it goes before frames that are not.
        """
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
                    await self._channel.wait_for_room()
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
                await self._channel.send(messages)
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
            self._channel.keep_unsent(self._slice_bytes)

    @property
    def trip_s(self) -> float:
        """The round trip as far as it is known."""
        return TRIP_S if self.rtt_s is None else self.rtt_s

    def measure_trip(self) -> None:
        """Measure the round trip if that was long ago."""
        if self._answered and trio.current_time() - self._pinged_at > MEASURE_S:
            self.ping()

    def ping(self) -> None:
        """Ask the peer for a sign of life, which also measures the round trip."""
        self._ping, self._pinged_at = (self._ping + 1) % 2**32, trio.current_time()
        self._answered = False
        self.reply(HEADER.pack(0, PING, SYN, 0, self._ping))

    def _on_pong(self, number: int) -> None:
        if number == self._ping and not self._answered:
            self.answers, self._answered = self.answers + 1, True
            trip_s = trio.current_time() - self._pinged_at
            self.rtt_s = trip_s if self.rtt_s is None else 0.8 * self.rtt_s + 0.2 * trip_s

    def reply(self, frame: bytes) -> None:
        """Queue a frame without waiting. Only streams and the session call this.

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

    async def _receive_frames(self, early: Sequence[bytes]) -> None:
        for message in early:
            self._take(memoryview(message))
        while not self.closed and (messages := await self._channel.receive()):
            for message in messages:
                self._take(memoryview(message))
            if self.intake is not None:
                frames, self._frames_taken = self._frames_taken, 0
                await self.intake(sum(map(len, messages)), max(frames, len(messages)))

    def _take(self, view: memoryview) -> None:
        """Take the next plaintext; frames may begin and end anywhere in it."""
        while view:
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
        try:
            self._accept_send.send_nowait(stream)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            stream.reset()
            return None
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

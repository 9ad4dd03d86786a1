"""Yamux: many streams over one secure channel, with every window enforced.

The wire protocol of hashicorp/yamux (spec.md), as libp2p uses it. Why not the library's: it buffers
whatever a peer sends (234 MiB were put on one stream), kills a writer that waits 5 s for a window,
polls for windows every 10 ms, and cuts frames so that each costs two Noise messages.

State of a session: its streams, by id; of a stream: its receive buffer and both windows. Memory:
a peer can make a session hold at most the sum of the windows it was granted; sending more is a
violation that ends the session. It may not block reading on writing: replies go out by a task of
their own (two readers that wait for each other's writes would never end).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from client.net.errors import ConnectionLost
from client.net.secure import MAX_PLAINTEXT_BYTES, SecureChannel
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

MAX_REPLY_BYTES = 64 * 1024
"""Replies (pongs, window updates, resets) that may wait to be sent: 5461 frames."""


@dataclass(frozen=True)
class YamuxLimits:
    """What a peer may make a session hold."""

    inbound_streams: int = 16
    pending_accepts: int = 8


class YamuxSession:
    """One connection's streams. ``run`` has to be running for anything to move.

    Args:
        channel: the authenticated channel; the session is its only user.
        dialler: whether this side dialled (it numbers its streams oddly).
        limits: what the peer may make the session hold.
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
        self._turn = trio.Lock()  # first come, first served: streams alternate batch by batch
        self._replies = bytearray()
        self._replies_wait = trio.Event()
        self._header = bytearray()  # an unfinished frame header
        self._body_left = 0
        self._body_stream: YamuxStream | None = None
        self._body_flags = 0
        self.closed = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes received on all streams and not yet taken."""
        return sum(stream.buffered_bytes for stream in self._streams.values())

    async def run(self, early: Sequence[bytes] = ()) -> None:
        """Move frames until the connection ends or the peer breaks a rule.

        Args:
            early: messages that arrived with the handshake.

        Raises:
            RemoteProtocolError: the peer broke a rule of Noise or Yamux.
            ConnectionLost: the connection broke.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_replies)
            try:
                await self._receive_frames(early)
            except (RemoteProtocolError, ConnectionLost) as error:
                failure = error
            finally:
                self._close()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def open_stream(self) -> YamuxStream:
        """Open a stream to the peer; raises ConnectionLost when the session has ended."""
        if self.closed:
            raise ConnectionLost("the connection ended")
        stream = YamuxStream(self, self._next_id)
        self._next_id += 2
        self._streams[stream.stream_id] = stream
        await self.write([HEADER.pack(0, WINDOW_UPDATE, SYN, stream.stream_id, 0)])
        return stream

    async def accept_stream(self) -> YamuxStream:
        """Wait for the peer to open a stream; raises ConnectionLost when the session has ended."""
        try:
            return await self._accept_receive.receive()
        except trio.EndOfChannel as error:
            raise ConnectionLost("the connection ended") from error

    async def write(self, plaintexts: Sequence[bytes]) -> None:
        """Send frames when it is this task's turn. Only streams and the session call this."""
        if not plaintexts:
            return
        async with self._turn:
            if self.closed:
                raise ConnectionLost("the connection ended")
            complete = False
            try:
                await self._channel.send(plaintexts)
                complete = True
            finally:
                if not complete:  # cancelled or broken inside a frame: nothing may follow it
                    self._close()
                    with trio.CancelScope(shield=True):
                        await self._channel.aclose()

    def reply(self, frame: bytes) -> None:
        """Queue a frame without waiting. Only streams and the session call this."""
        if self.closed:
            return
        if len(self._replies) + len(frame) > MAX_REPLY_BYTES:
            raise RemoteProtocolError("reply-flood", penalty=50)
        self._replies += frame
        self._replies_wait.set()

    def forget_if_done(self, stream: YamuxStream) -> None:
        """Drop the record of a stream on which nothing more can happen."""
        if stream.done:
            self._streams.pop(stream.stream_id, None)

    async def go_away(self) -> None:
        """Tell the peer that this side ends the session on purpose."""
        await self.write([HEADER.pack(0, GO_AWAY, 0, 0, 0)])

    def _close(self) -> None:
        self.closed = True
        self._accept_send.close()
        for stream in self._streams.values():
            stream.wake()

    async def _send_replies(self) -> None:
        while not self.closed:
            await self._replies_wait.wait()
            self._replies_wait = trio.Event()
            while self._replies:
                frames, self._replies = bytes(self._replies), bytearray()
                try:
                    await self.write(
                        [
                            frames[start : start + MAX_PLAINTEXT_BYTES]
                            for start in range(0, len(frames), MAX_PLAINTEXT_BYTES)
                        ]
                    )
                except ConnectionLost:
                    return  # the reader of the same connection reports it

    async def _receive_frames(self, early: Sequence[bytes]) -> None:
        for message in early:
            self._take(memoryview(message))
        while not self.closed and (messages := await self._channel.receive()):
            for message in messages:
                self._take(memoryview(message))

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
        if version != 0 or kind > GO_AWAY:
            raise RemoteProtocolError("yamux-frame", f"type {kind}", penalty=50)
        if kind == PING:
            if flags & SYN:
                self.reply(HEADER.pack(0, PING, ACK, 0, length))
        elif kind == GO_AWAY:
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
        stream = YamuxStream(self, stream_id)
        inbound = sum(1 for known in self._streams if known % 2 == stream_id % 2)
        if inbound >= self._limits.inbound_streams:
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

"""A link: the traffic between us and one peer, carried by one or more connections.

A *carrier* is one connection, with three lanes in each direction. Each side opens the streams
`control`, `bulk` and `background`, and only writes on those it opened and only reads on those it
accepted. So a tensor never delays a heartbeat, nor a newcomer's state a tensor, and every stream
has one task that does nothing but read it. Until the peer is admitted only its control lane is
read.

Of the carriers at most one takes frames from the link's queues. When both sides dial each other at
once, both keep the connection dialled by the smaller peer id. The other is retired only once our
lanes on the first are negotiated: by then the peer knows both connections, and does not take the
end of one for the end of the link. A direct connection is kept rather than one through a relay:
when one side has announced that it dials the other, the new connection takes over from the relayed
one in the midst of the link. A carrier that is retired finishes its current frame, signals its end,
and reads until the peer has done the same.

A peer that returns has lost its link, even if we have not noticed: it gets a new one, and the rest
of the client is told the end of the old one first.

State: one outbound queue per lane and the carriers at work; of each, how many lanes are open.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from client.net.errors import ConnectionLost, HandshakeFailed, StreamReset
from client.net.handshake import accept_protocol, request_protocol
from client.net.host import Connection
from client.net.libp2p_patches import GuardedStream
from client.net.pacing import Pacer
from client.net.queues import ByteQueue
from client.net.relay.exchange import RELAY_PROTOCOL
from client.net.unfinished import UnfinishedFrames
from client.net.yamux import YamuxStream
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.wire.framing import Buffer, Frame, FrameDecoder, encode_frame
from protocol.wire.messages import Message, decode_message, encode_message

LANES: Mapping[str, str] = {
    "control": "/volunteer/control/1",
    "bulk": "/volunteer/bulk/1",
    "background": "/volunteer/background/1",
}
"""Protocol ids of the lanes."""
WINDOW_BYTES: Mapping[str, int] = {
    "control": 1024 * 1024,
    "bulk": 16 * 1024 * 1024,
    "background": 16 * 1024 * 1024,
}
"""The most bytes that a peer may have in flight to us, within the budget of its connection."""
OPEN_S = 10.0
"""Deadline for agreeing on a lane."""
STALL_S = 30.0
"""Seconds after which a stalled write gives the peer up; received data earns time back."""
RETIRE_S = 5.0
"""Seconds without progress after which a retired carrier is given up."""
HAND_OVER_S = 1.0
"""Longest wait of the first write for the end of the previous connection, to keep the order."""
WRITE_BYTES = 256 * 1024
"""Small frames are joined up to this size into one write."""

CROSSING_S = 15.0
"""Seconds after which a peer's earlier dial must have arrived: a dial takes 10 s."""
REPLACED = "replaced by another connection"


Outgoing = Sequence[Buffer]
"""A frame ready to be written."""


def _size_of(frame: Outgoing) -> int:
    return sum(map(len, frame))


def outgoing(message: Message, payload: bytes) -> Outgoing:
    """Encode a message; raises LocalProtocolError when no peer would accept it."""
    if len(payload) > message.route.payload_limit:
        raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes of payload")
    return encode_frame(encode_message(message), payload)


Header = Message | RemoteProtocolError
"""A message; or the rule that its header broke, where the stream can still be read on."""


@dataclass(frozen=True)
class Common:
    """What all links of a network share.

    Attributes:
        deliver: a message came; it may block, which applies backpressure to the peer.
        refused: a rule was broken; the connection stays open unless the score is too high.
        changed: a connection of a link was added, became ready, or has ended.
        request: a stream came that is no lane, but about circuits or the link.
        hello_s: how long a peer that dialled us may take to be admitted.
    """

    deliver: Callable[[Link, Message, bytes], Awaitable[None]]
    refused: Callable[[PeerId, RemoteProtocolError], None]
    changed: Callable[[Link], None]
    request: Callable[[Connection, YamuxStream], Awaitable[None]]
    upload: Pacer
    download: Pacer
    unfinished: UnfinishedFrames
    hello_s: float


class Link:
    """The queues and carriers between ``own`` and ``peer``."""

    def __init__(self, own: PeerId, peer: PeerId, common: Common) -> None:
        self._own, self.peer, self.common = own, peer, common
        self.queues = {name: ByteQueue[Outgoing](_size_of) for name in LANES}
        self.carriers: list[Carrier] = []
        """Those at work, retired ones included."""
        self._active: Carrier | None = None
        self._up_at = 0.0
        self._moving_until = -math.inf
        self.admitted = trio.Event()
        """Set once the peer's Hello has been accepted; before, little that it says is taken."""
        self.sent = trio.lowlevel.ParkingLot()
        """Unparked when frames have been handed to a connection, or the last one has ended."""
        self.greetings = 0
        """Messages that it has said before."""
        self.too_early = 0
        """Messages that it has said before any of these."""
        self.up = trio.Event()
        """Set once all lanes have been agreed on; a link comes up once in its life."""
        self.gone = trio.Event()
        """Set once the last connection has ended."""

    @property
    def works(self) -> bool:
        """Whether messages can be sent to the peer now."""
        return self.up.is_set() and any(carrier.live for carrier in self.carriers)

    @property
    def in_doubt(self) -> bool:
        return self._active is not None and self._active.connection.in_doubt

    @property
    def connection(self) -> Connection | None:
        """The connection that takes the frames; None while there is none."""
        return self._active.connection if self._active else None

    def is_over_for(self, connection: Connection) -> bool:
        """Whether a new connection shows that the peer has lost this link, or we have."""
        live = [carrier for carrier in self.carriers if carrier.live]
        if not live or not self.up.is_set() or self._active not in live:
            return not live
        if self.in_doubt:
            return True
        if self._moves_to(connection):
            return False
        if connection.dialled == self._active.connection.dialled:
            return True
        # Our own dial began when we had no link. The peer's may have, for a while.
        return not connection.dialled and trio.current_time() - self._up_at > CROSSING_S

    def attach(self, carrier: Carrier) -> None:
        """Add a connection; one by the same dialler that has not come up is given up."""
        for other in self.carriers:
            if other.live and _way(other.connection) == _way(carrier.connection):
                other.connection.close(REPLACED)
        self.carriers.append(carrier)

    def settle(self) -> bool:
        """Decide which connection takes the frames; return whether the link has just come up.

        Call it when a connection was added, became ready, or ended.
        """
        live = [carrier for carrier in self.carriers if carrier.live]
        best = max(live, key=self._preference, default=None)
        if best is None or not best.ready:
            return False
        others = [carrier for carrier in self.carriers if carrier is not best]
        for other in others:
            other.retire(REPLACED)
        if best is not self._active:
            self._active, self._up_at = best, trio.current_time()
            best.begin(tuple(other.connection.ended for other in others))
        if self.up.is_set():
            return False
        self.up.set()
        return True

    def moving(self) -> None:
        """The peer is about to dial us, or knows that we are about to dial it."""
        self._moving_until = trio.current_time() + CROSSING_S

    def _moves_to(self, connection: Connection) -> bool:
        """Whether a new connection takes over from a relayed one, as announced. Without the
        announcement, a peer that comes directly has begun anew."""
        relayed = self._active is not None and self._active.connection.relay is not None
        return relayed and connection.relay is None and trio.current_time() < self._moving_until

    def detach(self, carrier: Carrier) -> bool:
        """Remove a connection that ended; return whether it was the last."""
        self.carriers.remove(carrier)
        if self._active is carrier:
            self._active = None
        if self.carriers:
            return False
        for queue in self.queues.values():
            queue.close()
            while len(queue):
                queue.receive_nowait()
        self.gone.set()
        self.sent.unpark_all()
        return True

    def close(self, reason: str) -> None:
        for carrier in self.carriers:
            carrier.connection.close(reason)

    async def finish(self, reason: str) -> None:
        """End the link once what is queued has been written and the peer has finished too.

        The deadline is the caller's; after it, `close`.
        """
        while any(self.queues.values()):
            await self.sent.park()
        for carrier in self.carriers:
            carrier.retire(reason)
        await self.gone.wait()

    def unsent_bytes(self, name: str) -> int:
        """Return the bytes of a lane not yet handed to a connection."""
        writing = sum(carrier.unsent_bytes(name) for carrier in self.carriers)
        return self.queues[name].size_bytes + writing

    def _preference(self, carrier: Carrier) -> tuple[bool, bool]:
        """Both sides prefer the same connection: a direct one, then that of the smaller id."""
        connection = carrier.connection
        return connection.relay is None, connection.dialled == (self._own < self.peer)


class Carrier:
    """Made for one connection of a link."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection, self._link, self._common = connection, link, link.common
        self._lanes_to_open = set(LANES)
        self._lanes_reading: set[str] = set()
        self._lanes_writing = set(LANES)
        self._lanes_waiting: dict[str, trio.CancelScope] = {}
        self._lanes_unseen = set(LANES)
        self._writing: dict[str, tuple[YamuxStream, int]] = {}
        """Streams with something to write, and their ``sent_bytes`` when it has been written."""
        self._retired = trio.Event()
        self._begun = trio.Event()
        self._before: tuple[trio.Event, ...] = ()
        self._changed = trio.lowlevel.ParkingLot()
        self.tensor_bytes_out = 0

    async def run(self) -> None:
        """Work until the connection ends or, once retired, until both sides are finished."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ending, self._accept_lanes, nursery)
            for name in LANES:
                nursery.start_soon(self._ending, self._write_lane, name)
            nursery.start_soon(self._expect_hello)
            await self._retired.wait()
            moved = -1
            while self._unfinished_lanes and moved != self._moved_bytes:
                moved = self._moved_bytes
                with trio.move_on_after(RETIRE_S):
                    while self._unfinished_lanes:
                        await self._changed.park()
            self.connection.close("finished")

    @property
    def live(self) -> bool:
        """Whether frames may still be given to it: neither retired nor at its end."""
        ended = self.connection.session.closed or self.connection.reason
        return not ended and not self._retired.is_set()

    @property
    def ready(self) -> bool:
        """Whether all of our lanes are negotiated; the peer has then attached it, too."""
        return not self._lanes_to_open

    def unsent_bytes(self, name: str) -> int:
        """Return the bytes that have left a lane's queue and not reached the connection yet."""
        if name not in self._writing:
            return 0
        stream, end = self._writing[name]
        return end - stream.sent_bytes

    @property
    def _unfinished_lanes(self) -> bool:
        return bool(self._lanes_writing or self._lanes_reading or self._lanes_unseen)

    @property
    def _moved_bytes(self) -> int:
        return self.connection.bytes_in + self.connection.bytes_out

    def begin(self, before: tuple[trio.Event, ...]) -> None:
        """Take frames from the queues, soon after the connections ``before`` have ended."""
        self._before = before
        self._begun.set()

    def retire(self, reason: str) -> None:
        """Take no more frames from the queues; keep reading the peer's frames."""
        self.connection.reason = self.connection.reason or reason
        self._retired.set()
        for waiting in self._lanes_waiting.values():
            waiting.cancel()
        self._changed.unpark_all()

    async def _ending(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task of a lane; an error in it ends the connection, with a reason."""
        try:
            await task(*args)
        except RemoteProtocolError as error:
            self._common.refused(self._link.peer, error)
            self.connection.close(error.reason)
        except trio.TooSlowError:
            self.connection.close("too slow")
        except (StreamReset, HandshakeFailed) as error:
            self.connection.close(str(error))
        except ConnectionLost:
            if not self._lanes_reading:  # else a reader still has frames to deliver
                self.connection.lost("closed by the peer")
                self.connection.close("closed by the peer")

    async def _expect_hello(self) -> None:
        # We chose the peers that we dialled, and they may be busy starting.
        hello_s = math.inf if self.connection.dialled else self._common.hello_s
        with trio.move_on_after(hello_s) as patience:
            await self._link.admitted.wait()
        if patience.cancelled_caught:
            self._common.refused(self._link.peer, RemoteProtocolError("no-hello", penalty=0))
            self.connection.close("no Hello in time")

    async def _accept_lanes(self, nursery: trio.Nursery) -> None:
        while True:
            stream = await self.connection.session.accept_stream()
            nursery.start_soon(self._ending, self._read_lane, stream)

    async def _read_lane(self, stream: YamuxStream) -> None:
        try:
            with trio.fail_after(OPEN_S):
                offered = (*LANES.values(), RELAY_PROTOCOL)
                chosen = await accept_protocol(GuardedStream(stream), offered)
        except (HandshakeFailed, trio.TooSlowError):
            stream.reset()  # a stranger's protocol (identify, ping): refuse the stream only
            return
        if chosen == RELAY_PROTOCOL:
            await self._common.request(self.connection, stream)
            return
        name = next(name for name, protocol in LANES.items() if protocol == chosen)
        if name not in self._lanes_unseen:
            raise RemoteProtocolError("lane-opened-twice", name, penalty=20)
        self._lanes_unseen.discard(name)
        self._lanes_reading.add(name)
        try:
            if name != "control":
                await self._link.admitted.wait()
            stream.let_window_grow(WINDOW_BYTES[name])
            await self._read_frames(name, stream)
        finally:
            self._lanes_reading.discard(name)
        stream.send_eof()
        if not self._lanes_reading and not self._lanes_unseen:
            self.retire("closed by the peer")
        self._changed.unpark_all()

    async def _read_frames(self, name: str, stream: YamuxStream) -> None:
        decoder = FrameDecoder(partial(_parse, name), self._limit_of)
        pace = self._common.download.lanes[name]
        with self._common.unfinished.lane(self._evict) as arrival:
            while data := await arrival.receive_some(stream):
                await pace(len(data))
                frames = decoder.receive_data(data)
                arrival.took(len(data), completed=bool(frames), held_bytes=decoder.held_bytes)
                for frame in frames:
                    await self._take(frame)
        decoder.receive_eof()

    def _limit_of(self, header: Header) -> int:
        limit = 0 if isinstance(header, RemoteProtocolError) else header.route.payload_limit
        return min(limit, self._common.unfinished.payload_limit)

    def _evict(self) -> None:
        self._common.refused(self._link.peer, RemoteProtocolError("unfinished-frames", penalty=0))
        self.connection.close("unfinished-frames")

    async def _take(self, frame: Frame[Header]) -> None:
        if isinstance(frame.header, RemoteProtocolError):
            self._common.refused(self._link.peer, frame.header)
            return
        await self._common.deliver(self._link, frame.header, frame.payload)

    async def _write_lane(self, name: str) -> None:
        # Also when retired already: the peer waits for the end of all lanes.
        with trio.fail_after(OPEN_S):
            stream = await self.connection.session.open_stream(urgent=name == "control")
            await request_protocol(GuardedStream(stream), LANES[name])
        self._lanes_to_open.discard(name)
        if not self._lanes_to_open and not self._retired.is_set():
            self._common.changed(self._link)
            self.connection.session.ping()
        while batch := await self._next_batch(name):
            with self._common.upload.writing(name):  # also between two waiting frames
                while batch:
                    buffers = [buffer for frame in batch for buffer in frame]
                    size_bytes = _size_of(buffers)
                    self._writing[name] = stream, stream.sent_bytes + size_bytes
                    await stream.send_all(buffers, STALL_S, self._common.upload.lanes[name])
                    self._link.sent.unpark_all()
                    if name == "bulk":
                        self.tensor_bytes_out += size_bytes
                    batch = self._with_waiting(name, [])
        stream.send_eof()
        await stream.receive_some()  # the peer ends its side when it has delivered everything
        self._lanes_writing.discard(name)
        self._changed.unpark_all()

    async def _next_batch(self, name: str) -> list[Outgoing]:
        """Wait for frames to write; [] once retired. Small ones come together."""
        batch = list[Outgoing]()
        with trio.CancelScope() as waiting:
            self._lanes_waiting[name] = waiting
            if self._retired.is_set():
                waiting.cancel()
            if not self._begun.is_set():
                await self._begun.wait()
            if self._before:
                with trio.move_on_after(HAND_OVER_S):
                    for ended in self._before:
                        await ended.wait()
                self._before = ()
            batch.append(await self._link.queues[name].receive())
        return self._with_waiting(name, batch)

    def _with_waiting(self, name: str, batch: list[Outgoing]) -> list[Outgoing]:
        """Add the frames that wait already, up to one write; nothing once retired."""
        queue, size_bytes = self._link.queues[name], sum(map(_size_of, batch))
        while len(queue) and size_bytes < WRITE_BYTES and not self._retired.is_set():
            batch.append(queue.receive_nowait())
            size_bytes += _size_of(batch[-1])
        return batch


def _parse(name: str, header: bytes) -> Header:
    try:
        message = decode_message(header)
    except RemoteProtocolError as error:
        return error
    if message.route.lane != name:
        return RemoteProtocolError("wrong-lane", type(message).__name__, penalty=20)
    return message


def _way(connection: Connection) -> tuple[bool, bool]:
    return connection.dialled, connection.relay is None

"""A carrier: one connection that serves a link, with three lanes in each direction.

Each side opens the streams `control`, `bulk` and `background`, and only writes on those it opened
and only reads on those it accepted. So a tensor never delays a heartbeat, nor a newcomer's state a
tensor, and every stream has one task that does nothing but read it. State: how many lanes are open,
whether it is being retired. Until the peer is admitted only its control lane is read.

A carrier is retired when another connection takes over: it finishes its current frame, signals its
end, and reads until the peer has done the same. The link decides which connection wins.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from client.net.errors import ConnectionLost, HandshakeFailed, StreamReset
from client.net.handshake import accept_protocol, request_protocol
from client.net.host import Connection
from client.net.pacing import Pacing
from client.net.queues import ByteQueue
from client.net.relay.exchange import RELAY_PROTOCOL, negotiable
from client.net.unfinished import UnfinishedFrames
from client.net.yamux import YamuxStream
from protocol.errors import LocalProtocolError, RemoteProtocolError
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
PING_S = 5.0
SILENT_S = 20.0
"""Seconds without any data, though pings were sent, after which the connection is dead."""
RETIRE_S = 5.0
"""Seconds without progress after which a retired carrier is given up."""
HAND_OVER_S = 1.0
"""Longest wait of the first write for the end of the previous connection, to keep the order."""
READ_BYTES = 256 * 1024
"""Most bytes that are taken from a lane, and paced, at a time."""
WRITE_BYTES = 256 * 1024
"""Small frames are joined up to this size into one write."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A frame ready to be written."""

    buffers: tuple[Buffer, ...]
    size_bytes: int


def outgoing(message: Message, payload: bytes) -> Outgoing:
    """Encode a message; raises LocalProtocolError when no peer would accept it."""
    if len(payload) > message.route.payload_limit:
        raise LocalProtocolError(f"{type(message).__name__} with {len(payload)} bytes of payload")
    buffers = encode_frame(encode_message(message), payload)
    return Outgoing(tuple(buffers), sum(len(buffer) for buffer in buffers))


Header = Message | RemoteProtocolError
"""A message; or the rule that its header broke, where the stream can still be read on."""


@dataclass(frozen=True)
class CarrierHooks:
    """Callbacks from a carrier to its link.

    deliver: a message came; it may block, which applies backpressure to the peer.
    refused: a rule was broken; the connection stays open unless the score is too high.
    up: all of our lanes are negotiated.
    admitted: waits until the peer's Hello has been accepted.
    sent: some frames have been handed to the connection.
    relay: a stream came that is no lane, but about circuits or this link.
    """

    deliver: Callable[[Message, bytes], Awaitable[None]]
    refused: Callable[[RemoteProtocolError], None]
    up: Callable[[], None]
    admitted: Callable[[], Awaitable[None]]
    sent: Callable[[], object]
    relay: Callable[[Connection, YamuxStream], Awaitable[None]]


class Carrier:
    """Made by a link for one connection."""

    def __init__(
        self,
        connection: Connection,
        queues: Mapping[str, ByteQueue[Outgoing]],
        hooks: CarrierHooks,
        pacing: Pacing,
        unfinished: UnfinishedFrames,
        hello_s: float = math.inf,
    ) -> None:
        self.connection = connection
        self._hello_s = hello_s
        self._pacing = pacing
        self._unfinished = unfinished
        self._queues = queues
        self._hooks = hooks
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
            nursery.start_soon(self._keep_alive)
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
            self._hooks.refused(error)
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
        with trio.move_on_after(self._hello_s) as patience:
            await self._hooks.admitted()
        if patience.cancelled_caught:
            self._hooks.refused(RemoteProtocolError("no-hello", penalty=0))
            self.connection.close("no Hello in time")

    async def _accept_lanes(self, nursery: trio.Nursery) -> None:
        while True:
            stream = await self.connection.session.accept_stream()
            nursery.start_soon(self._ending, self._read_lane, stream)

    async def _read_lane(self, stream: YamuxStream) -> None:
        try:
            with trio.fail_after(OPEN_S):
                offered = (*LANES.values(), RELAY_PROTOCOL)
                chosen = await accept_protocol(negotiable(stream), offered)
        except (HandshakeFailed, trio.TooSlowError):
            stream.reset()  # a stranger's protocol (identify, ping): refuse the stream only
            return
        if chosen == RELAY_PROTOCOL:
            await self._hooks.relay(self.connection, stream)
            return
        name = next(name for name, protocol in LANES.items() if protocol == chosen)
        if name not in self._lanes_unseen:
            raise RemoteProtocolError("lane-opened-twice", name, penalty=20)
        self._lanes_unseen.discard(name)
        self._lanes_reading.add(name)
        try:
            if name != "control":
                await self._hooks.admitted()
            stream.let_window_grow(self._window_bytes(name))
            await self._read_frames(name, stream)
        finally:
            self._lanes_reading.discard(name)
        stream.send_eof()
        if not self._lanes_reading and not self._lanes_unseen:
            self.retire("closed by the peer")
        self._changed.unpark_all()

    def _window_bytes(self, name: str) -> int:
        usual = WINDOW_BYTES[name]
        return usual if name == "control" else self._pacing.download.window_bytes(usual)

    async def _read_frames(self, name: str, stream: YamuxStream) -> None:
        decoder = FrameDecoder(partial(_parse, name), self._limit_of)
        pacer = self._pacing.download
        most = READ_BYTES if pacer.rate_bytes_per_s else None
        with self._unfinished.lane(self._evict) as arrival:
            while data := await arrival.receive_some(stream, most):
                await pacer.lanes[name](len(data))
                frames = decoder.receive_data(data)
                arrival.took(len(data), completed=bool(frames), held_bytes=decoder.held_bytes)
                for frame in frames:
                    await self._take(frame)
        decoder.receive_eof()

    def _limit_of(self, header: Header) -> int:
        limit = 0 if isinstance(header, RemoteProtocolError) else header.route.payload_limit
        return min(limit, self._unfinished.payload_limit)

    def _evict(self) -> None:
        self._hooks.refused(RemoteProtocolError("unfinished-frames", penalty=0))
        self.connection.close("unfinished-frames")

    async def _take(self, frame: Frame[Header]) -> None:
        if isinstance(frame.header, RemoteProtocolError):
            self._hooks.refused(frame.header)
            return
        await self._hooks.deliver(frame.header, frame.payload)

    async def _write_lane(self, name: str) -> None:
        # Also when retired already: the peer waits for the end of all lanes.
        with trio.fail_after(OPEN_S):
            stream = await self.connection.session.open_stream(urgent=name == "control")
            await request_protocol(negotiable(stream), LANES[name])
        self._lanes_to_open.discard(name)
        if not self._lanes_to_open and not self._retired.is_set():
            self._hooks.up()
            self.connection.session.ping()
        while batch := await self._next_batch(name):
            with self._pacing.upload.writing(name):  # also between two waiting frames
                while batch:
                    buffers = [buffer for frame in batch for buffer in frame.buffers]
                    size_bytes = sum(frame.size_bytes for frame in batch)
                    self._writing[name] = stream, stream.sent_bytes + size_bytes
                    await stream.send_all(buffers, STALL_S, self._pacing.upload.lanes[name])
                    self._hooks.sent()
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
            batch.append(await self._queues[name].receive())
        return self._with_waiting(name, batch)

    def _with_waiting(self, name: str, batch: list[Outgoing]) -> list[Outgoing]:
        """Add the frames that wait already, up to one write; nothing once retired."""
        queue, size_bytes = self._queues[name], sum(frame.size_bytes for frame in batch)
        while len(queue) and size_bytes < WRITE_BYTES and not self._retired.is_set():
            batch.append(queue.receive_nowait())
            size_bytes += batch[-1].size_bytes
        return batch

    async def _keep_alive(self) -> None:
        """Ping while no other traffic shows that the peer is alive, and detect when it is not."""
        heard, heard_at = -1, trio.current_time()
        while True:
            if self.connection.bytes_in != heard:
                heard, heard_at = self.connection.bytes_in, trio.current_time()
            elif trio.current_time() - heard_at > SILENT_S:
                self.connection.close("silent")
            await trio.sleep(PING_S)
            self.connection.session.ping()


def _parse(name: str, header: bytes) -> Header:
    try:
        message = decode_message(header)
    except RemoteProtocolError as error:
        return error
    if message.route.lane != name:
        return RemoteProtocolError("wrong-lane", type(message).__name__, penalty=20)
    return message

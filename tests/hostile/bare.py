"""A link made by hand: it says what it is told to and reads what it is told to, and nothing else.

The client's own network keeps every rule; here only the handshake and the framing are the client's.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import trio

from client.net.addresses import parse_destination
from client.net.errors import NetworkError
from client.net.handshake import accept_protocol, handshake, make_identity, request_protocol
from client.net.libp2p_patches import GuardedStream
from client.net.links import LANES
from client.net.secure import SecureChannel
from client.net.tcp import TCP
from client.net.yamux import YamuxSession, YamuxStream
from client.train.messaging.handshake import PROTOCOL
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.wire.framing import FrameDecoder, encode_frame
from protocol.wire.messages import Hello, Message, decode_message, encode_message

Read = Callable[[str, YamuxStream], object]
BROKEN = (NetworkError, RemoteProtocolError, OSError, trio.TooSlowError, trio.BrokenResourceError)
"""How a link ends, also when the other side ends it."""


@dataclass
class BareLink:
    """One connection with its three lanes. Made by ``bare_link``."""

    peer: PeerId
    session: YamuxSession
    heard: trio.MemoryReceiveChannel[Message]
    """Messages of the other side in the control lane; the newest are dropped."""
    lanes: dict[str, YamuxStream] = field(default_factory=dict)

    async def say(self, message: Message, payload: bytes = b"") -> None:
        """Send a message in its lane."""
        frame = encode_frame(encode_message(message), payload)
        await self.write(message.route.lane, b"".join(frame))

    async def write(self, name: str, data: bytes) -> None:
        """Send bytes, whatever they mean."""
        await self.lanes[name].send_all([data])

    async def ended(self) -> None:
        """Wait until the other side has had enough."""
        while not self.session.closed:
            await trio.sleep(0.2)


@asynccontextmanager
async def proved(address: str, seed: bytes | None = None) -> AsyncIterator[SecureChannel]:
    """A connection that has proved an identity, a new one without ``seed``, and says nothing
    more."""
    target, identity = parse_destination(address), make_identity(seed or os.urandom(32))
    async with TCP.dial(target) as stream:
        with trio.fail_after(20):
            yield_this = await handshake(stream, identity, target.peer)
        yield yield_this


@asynccontextmanager
async def bare_link(
    address: str, swarm: str, read: Read | None = None, seed: bytes | None = None
) -> AsyncIterator[BareLink]:
    """Link an identity with a node.

    Args:
        address: where it listens.
        swarm: named in a Hello, which is said at once.
        read: called for each lane of the other side but control; None: they are read and dropped.
        seed: of the identity; None: a new one.
    """
    async with proved(address, seed) as other, trio.open_nursery() as nursery:
        session = YamuxSession(other, dialler=True)
        sink, heard = trio.open_memory_channel[Message](1000)
        link = BareLink(other.peer, session, heard)
        nursery.start_soon(_run, session)
        nursery.start_soon(_accept, link, sink, read or _drain, nursery)
        for name, protocol in LANES.items():
            stream = link.lanes[name] = await session.open_stream()
            await request_protocol(GuardedStream(stream), protocol)
        await link.say(Hello(PROTOCOL, swarm, "volunteer/0.1.0"))
        yield link
        nursery.cancel_scope.cancel()


async def _run(session: YamuxSession) -> None:
    try:
        await session.run()
    except BROKEN:
        return


async def _accept(
    link: BareLink, sink: trio.MemorySendChannel[Message], read: Read, nursery: trio.Nursery
) -> None:
    try:
        while True:
            stream = await link.session.accept_stream()
            chosen = await accept_protocol(GuardedStream(stream), LANES.values())
            name = next(name for name, protocol in LANES.items() if protocol == chosen)
            if name == "control":
                nursery.start_soon(_listen, stream, sink)
            else:
                nursery.start_soon(_reading, read, name, stream)
    except BROKEN:
        return


async def _listen(stream: YamuxStream, sink: trio.MemorySendChannel[Message]) -> None:
    decoder = FrameDecoder(decode_message, attrgetter("route.payload_limit"))
    try:
        while data := await stream.receive_some():
            for frame in decoder.receive_data(data):
                with suppress(trio.WouldBlock):
                    sink.send_nowait(frame.header)
    except BROKEN:
        return


async def _reading(read: Callable[..., object], name: str, stream: YamuxStream) -> None:
    try:
        await read(name, stream)  # type: ignore[misc]
    except BROKEN:
        return


async def _drain(name: str, stream: YamuxStream) -> None:
    while await stream.receive_some():
        pass


async def again_and_again(count: int, rate_per_s: float, what: Callable[[int], object]) -> None:
    """Keep so many of an attack going; each that ends begins again, at a bounded rate in all."""
    gate = trio.Lock()

    async def one(number: int) -> None:
        while True:
            async with gate:
                await trio.sleep(1 / rate_per_s)
            try:
                await what(number)  # type: ignore[misc]
            except* BROKEN:
                pass

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(partial(one, number))

"""Single messages on a stream between a relay and a peer: a length of two bytes, then the message.

Nothing is read beyond a message: what follows may be the bytes of a circuit. No state.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import trio

from client.net.addresses import Destination
from client.net.errors import NetworkError, StreamReset
from client.net.handshake import request_protocol
from client.net.host import Connection
from client.net.libp2p_patches import GuardedStream
from client.net.transport import ByteStream
from client.net.yamux import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.relay.messages import (
    MAX_RELAY_MESSAGE_BYTES,
    RelayMessage,
    Status,
    decode_relay_message,
    encode_relay_message,
)

RELAY_PROTOCOL: Final = "/volunteer/relay/1"
ANSWER_S: Final = 8.0
"""Longest wait for an answer: less than a dial may take."""
_LENGTH_BYTES = 2


class Links(Protocol):
    """The part of ``Libp2pNetwork`` that relaying and punching use."""

    @property
    def peer_id(self) -> PeerId: ...
    def direct(self, peer: PeerId) -> Connection | None: ...
    def is_member(self, peer: PeerId) -> bool: ...
    def is_admitted(self, peer: PeerId) -> bool: ...
    def penalise(self, peer: PeerId, points: int, reason: str) -> None: ...
    async def connect(self, *addresses: str) -> PeerId: ...
    async def dial_any(self, addresses: Sequence[str]) -> None: ...
    async def dial_beside(self, peer: PeerId) -> None: ...
    async def meet(self, target: Destination, own_port: int, *, first: bool) -> None: ...
    def serve_circuit(self, stream: ByteStream, relay: PeerId, asker: PeerId) -> None: ...
    def dialling(self, peer: PeerId) -> trio.Lock: ...
    def change_of(self, peer: PeerId) -> trio.lowlevel.ParkingLot: ...


async def send_message(stream: YamuxStream, message: RelayMessage) -> None:
    """Send a message; raises StreamReset or ConnectionLost."""
    await stream.send_all([_framed(message)])


async def send_last(stream: YamuxStream, message: RelayMessage) -> None:
    """Send a message, and nothing more; raises StreamReset or ConnectionLost."""
    await send_message(stream, message)
    stream.send_eof()


async def receive_message(stream: YamuxStream) -> RelayMessage:
    """Wait for a message.

    Raises:
        StreamReset, ConnectionLost: the stream ended before.
        RemoteProtocolError: it is none.
    """
    size = int.from_bytes(await _receive_exactly(stream, _LENGTH_BYTES), "big")
    if size > MAX_RELAY_MESSAGE_BYTES:
        raise RemoteProtocolError("relay-message-too-long", f"{size} bytes", penalty=20)
    return decode_relay_message(await _receive_exactly(stream, size))


async def ask(connection: Connection, message: RelayMessage) -> tuple[YamuxStream, RelayMessage]:
    """Open a stream of a link, send a message and wait for the answer; the stream stays open.

    Raises:
        StreamReset, ConnectionLost, HandshakeFailed: the other side ended it or knows no relays.
        RemoteProtocolError: its answer is no message.
        trio.TooSlowError: it does not answer.
    """
    with trio.fail_after(ANSWER_S):
        stream = await connection.session.open_stream()
        try:
            await request_protocol(GuardedStream(stream), RELAY_PROTOCOL, _framed(message))
            return stream, await receive_message(stream)
        except BaseException:
            stream.reset()
            raise


FAILURES: Final = (NetworkError, RemoteProtocolError, trio.TooSlowError)
"""What ``ask`` raises when the other side is of no use."""


async def answered(
    links: Links, connection: Connection | None, message: RelayMessage
) -> tuple[YamuxStream, RelayMessage] | None:
    """Ask; None: there is no answer. The stream stays open. Whoever answers nonsense is blamed."""
    if connection is None:
        return None
    try:
        return await ask(connection, message)
    except RemoteProtocolError as error:
        links.penalise(connection.peer, error.penalty, error.reason)
    except FAILURES:
        pass
    return None


async def agreed(
    links: Links, connection: Connection | None, message: RelayMessage
) -> YamuxStream | None:
    """Ask; return the stream, which stays open, if the other side agrees."""
    if (found := await answered(links, connection, message)) is None:
        return None
    stream, answer = found
    if answer == Status("ok"):
        return stream
    stream.reset()
    return None


async def answer_to(
    links: Links, connection: Connection, message: RelayMessage
) -> RelayMessage | None:
    """Ask, and end the stream; None: there is no answer."""
    if (found := await answered(links, connection, message)) is None:
        return None
    stream, answer = found
    stream.reset()  # the other side need not end its half, and could fill it
    return answer


def _framed(message: RelayMessage) -> bytes:
    data = encode_relay_message(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def _receive_exactly(stream: YamuxStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        if not more:
            raise StreamReset("the stream ended inside a message")
        data += more
    return data

"""Networks that relay, reserve and ask for circuits by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from client.net.errors import NetworkError
from client.net.libp2p_network import Libp2pNetwork
from client.net.relay.exchange import ask
from client.net.yamux_stream import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.relay.messages import Connect, RelayMessage, Status
from tests.support.loopback import Networks

PIECE_BYTES = 64 * 1024


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the test's deadline ends it."""
    while not condition():
        await trio.sleep(0.01)


def linked(a: Libp2pNetwork, b: Libp2pNetwork) -> bool:
    """Whether ``a`` has a link with ``b``."""
    return b.peer_id in a.statistics().peers


async def reserve(member: Libp2pNetwork, relay: Libp2pNetwork, at: str = "") -> None:
    """Let a network be reached through a relay, which relays from now on and listens ``at``."""
    relay.passing.offer(relays=True)
    member.reaching.update({relay.peer_id: [at or relay.addresses[0]]}, needed=True)
    await until(lambda: relay.peer_id in member.reaching.machine.relays)


@asynccontextmanager
async def circuit(networks: Networks) -> AsyncIterator[tuple[Libp2pNetwork, ...]]:
    """Two networks that reach each other through the third."""
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        await a.connect(b.reaching.addresses[0])
        await until(lambda: linked(b, a))
        yield a, b, relay


async def asked(asker: Libp2pNetwork, relay: Libp2pNetwork, message: RelayMessage) -> RelayMessage:
    """Ask a relay with which there is a link; return its answer, and end the stream."""
    connection = asker.direct(relay.peer_id)
    assert connection is not None
    stream, answer = await ask(connection, message)
    stream.reset()
    return answer


async def circuit_to(
    asker: Libp2pNetwork, relay: Libp2pNetwork, target: Libp2pNetwork
) -> YamuxStream:
    """Return a circuit to a target as a bare stream."""
    connection = asker.direct(relay.peer_id)
    assert connection is not None
    stream, answer = await ask(connection, Connect(target.peer_id))
    assert isinstance(answer, Status), answer
    assert answer.code == "ok", answer
    return stream


async def fill(stream: YamuxStream) -> None:
    """Send on a circuit without end."""
    try:
        while True:
            await stream.send_all([bytes(PIECE_BYTES)])
    except (NetworkError, RemoteProtocolError):
        return

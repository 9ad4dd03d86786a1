"""Networks that relay, reserve and ask for circuits by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from client.net.errors import NetworkError
from client.net.libp2p_network import Libp2pNetwork
from client.net.relay.exchange import ask
from client.net.yamux import YamuxStream
from protocol.errors import RemoteProtocolError
from protocol.relay.messages import Connect, RelayMessage, Status
from tests.support.arrivals import until
from tests.support.loopback import Networks

PIECE_BYTES = 64 * 1024


def linked(a: Libp2pNetwork, b: Libp2pNetwork) -> bool:
    return b.peer_id in a.statistics().peers


async def reserve(member: Libp2pNetwork, *relays: Libp2pNetwork, at: str = "") -> None:
    """Let a network be reached through relays, which relay from now on and listen ``at``."""
    for relay in relays:
        relay.passing.offer(relays=True)
    known = {relay.peer_id: [at or relay.addresses[0]] for relay in relays}
    member.reaching.update(known, needed=True)
    await until(lambda: known.keys() <= set(member.reaching.relays))


@asynccontextmanager
async def circuit(networks: Networks) -> AsyncIterator[tuple[Libp2pNetwork, ...]]:
    """Two networks that reach each other through the third."""
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        await a.connect(b.reaching.addresses[0])
        await until(lambda: linked(b, a))
        yield a, b, relay


async def asked(asker: Libp2pNetwork, other: Libp2pNetwork, message: RelayMessage) -> RelayMessage:
    """Ask a peer with which there is a link; return its answer, and end the stream."""
    connection = asker._links[other.peer_id].connection
    stream, answer = await ask(connection, message)
    stream.reset()
    return answer


async def circuit_to(
    asker: Libp2pNetwork, relay: Libp2pNetwork, target: Libp2pNetwork
) -> YamuxStream:
    """Return a circuit to a target as a bare stream."""
    connection = asker.direct(relay.peer_id)
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

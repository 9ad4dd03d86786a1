"""Messages of the network tests, and how they arrive."""

from collections.abc import Callable

import trio

from client.net.errors import NetworkError
from client.net.libp2p_network import UP_S, Libp2pNetwork
from client.net.network import Inbound
from client.net.yamux import YamuxSession, YamuxStream
from protocol.ids import PeerId
from protocol.wire.messages import Backward, Message

ROOM_BYTES = {"control": 2 * 2**20, "bulk": 64 * 2**20, "background": 64 * 2**20}
"""What these tests let wait for one peer."""


class PeerUnreachable(NetworkError):
    """There is no link to a peer."""


def backward(number: int) -> Backward:
    return Backward(stage=0, step=1, microbatch=number)


def buffered_bytes(session: YamuxSession) -> int:
    """Bytes received on all streams and not yet taken."""
    return sum(map(buffered, session._streams.values()))


def buffered(stream: YamuxStream) -> int:
    return sum(map(len, stream._chunks))


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the test's deadline ends it."""
    while not condition():
        await trio.sleep(0.01)


async def next_inbound(network: Libp2pNetwork) -> Inbound:
    while True:
        event = await network.events.receive()
        if isinstance(event, Inbound):
            return event


async def is_up(network: Libp2pNetwork, other: Libp2pNetwork) -> None:
    """Wait until ``network`` has its link to ``other``: the dialled side has it later."""
    await until(lambda: other.peer_id in network.statistics().peers)


async def say(network: Libp2pNetwork, peer: PeerId, message: Message, payload: bytes = b"") -> None:
    """Post a message, once there are a link and room in its lane; raises PeerUnreachable."""
    lane = message.route.lane
    if peer in network._wanted:
        with trio.move_on_after(UP_S):
            while not network._is_up(peer):
                await trio.sleep(0.001)
    while (held := network.unsent_bytes(peer, lane)) and held + len(payload) > ROOM_BYTES[lane]:
        await trio.sleep(0.001)
    if not network._is_up(peer):
        raise PeerUnreachable(f"no link to {peer}")
    network.post(peer, message, payload)
    await trio.lowlevel.checkpoint()

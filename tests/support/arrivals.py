"""Messages of the network tests, and how they arrive."""

from __future__ import annotations

import trio

from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound
from protocol.wire.messages import Backward


def backward(number: int) -> Backward:
    return Backward(stage=0, step=1, microbatch=number, attempt=0)


async def next_inbound(network: Libp2pNetwork) -> Inbound:
    while True:
        event = await network.events.receive()
        if isinstance(event, Inbound):
            return event


async def is_up(network: Libp2pNetwork, other: Libp2pNetwork) -> None:
    """Wait until ``network`` has its link to ``other``: the dialled side has it later."""
    while other.peer_id not in network.statistics().peers:
        await trio.sleep(0.01)

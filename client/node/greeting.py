"""Asks one member who it is and which protocol it speaks, with a throw-away identity.

Members greet first; nothing of ours is sent but the handshake of the connection.
"""

from __future__ import annotations

from collections.abc import Sequence

import nacl.utils
import trio

from client.net.errors import NetworkError
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import Inbound
from client.train.messaging.handshake import PROTOCOL
from protocol.address import Address
from protocol.wire.messages import Goodbye, Hello

OURS = PROTOCOL
"""The protocol that this program speaks."""


async def greeting(member: Sequence[Address], timeout_s: float) -> Hello:
    """Return a member's first message.

    Args:
        member: its addresses, with its peer id.
        timeout_s: limit for everything.

    Raises:
        NetworkError: it does not answer in time, or is another peer; says what happened.
    """
    why = "it does not answer in time"
    with trio.move_on_after(timeout_s):
        async with open_network(nacl.utils.random(32), [("127.0.0.1", 0)]) as network:
            answer = await _first_message(network, member)
        if isinstance(answer, Hello):
            return answer
        why = answer
    raise NetworkError(why)


async def _first_message(network: Libp2pNetwork, member: Sequence[Address]) -> Hello | str:
    """Return a member's Hello, or why there is none."""
    try:
        peer = await network.connect(*map(str, member))
    except NetworkError as error:
        return str(error)
    async for event in network.events:
        match event:
            case Inbound(sender, Hello() as hello, _) if sender == peer:
                return hello
            case Inbound(sender, Goodbye(reason), _) if sender == peer:
                return f"it refuses us: {reason}"
            case _:
                pass
    return "the connection ended"

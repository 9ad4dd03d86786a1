"""Types of the fixtures that make networks, hosts and strangers on loopback."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from client.net.addresses import parse_destination
from client.net.host import Connection, Host
from client.net.libp2p_network import Libp2pNetwork
from client.net.secure import SecureChannel

Networks = Callable[..., AbstractAsyncContextManager[Libp2pNetwork]]
Hosts = Callable[..., AbstractAsyncContextManager[Host]]
Dial = Callable[[str], AbstractAsyncContextManager[trio.SocketStream]]
Intrude = Callable[[str], AbstractAsyncContextManager[SecureChannel]]


async def dialled(host: Host, address: str) -> Connection:
    """Let a host dial a multiaddr."""
    return await host.connect([parse_destination(address)])

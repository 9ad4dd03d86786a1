"""Types of the fixtures that make networks, hosts and strangers on loopback."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from client.net.handshake import Authenticated
from client.net.host import Host
from client.net.libp2p_network import Libp2pNetwork

Networks = Callable[..., AbstractAsyncContextManager[Libp2pNetwork]]
Hosts = Callable[..., AbstractAsyncContextManager[Host]]
Dial = Callable[[str], AbstractAsyncContextManager[trio.SocketStream]]
Intrude = Callable[[str], AbstractAsyncContextManager[Authenticated]]

"""Fixtures of the network tests: real sockets on loopback, generous deadlines."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from client.net.addresses import parse_destination
from client.net.connection_limiter import HostLimits
from client.net.handshake import handshake, make_identity
from client.net.host import Connection, Handler, Host, open_host
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.pacing import Rates
from client.net.secure import SecureChannel
from client.net.tcp import TcpStream
from tests.support.loopback import Dial, Hosts, Intrude, Networks

DEADLINE_S = 30.0


@pytest.fixture
def networks() -> Networks:
    """A factory of networks on loopback; the test must end within 30 s."""

    @asynccontextmanager
    async def make(
        seed: bytes | None = None,
        port: int = 0,
        limits: HostLimits = HostLimits(),  # noqa: B008  (frozen)
        rates: Rates = Rates(),  # noqa: B008
    ) -> AsyncIterator[Libp2pNetwork]:
        with trio.fail_after(DEADLINE_S):
            where = "127.0.0.1", port
            async with open_network(seed or os.urandom(32), where, limits, rates=rates) as network:
                yield network

    return make


@pytest.fixture
def hosts() -> Hosts:
    """A factory of hosts on loopback, by default with a handler that waits for the end."""

    async def idle(connection: Connection) -> None:
        await connection.run(trio.sleep_forever)

    @asynccontextmanager
    async def make(
        handler: Handler = idle,
        limits: HostLimits = HostLimits(),  # noqa: B008  (frozen)
        seed: bytes | None = None,
    ) -> AsyncIterator[Host]:
        with trio.fail_after(DEADLINE_S):
            where = "127.0.0.1", 0
            async with open_host(seed or os.urandom(32), where, handler, limits) as host:
                yield host

    return make


@asynccontextmanager
async def dial_raw(address: str) -> AsyncIterator[trio.SocketStream]:
    """A bare TCP connection, as a stranger's program would make it."""
    target = parse_destination(address)
    stream = await trio.open_tcp_stream(target.host, target.port)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


@pytest.fixture
def dial() -> Dial:
    return dial_raw


@pytest.fixture
def intrude() -> Intrude:
    """A peer with a valid identity that then sends whatever the test wants."""

    @asynccontextmanager
    async def make(address: str) -> AsyncIterator[SecureChannel]:
        async with dial_raw(address) as stream:
            identity = make_identity(os.urandom(32))
            yield await handshake(TcpStream(stream), identity, parse_destination(address).peer)

    return make

"""Fixtures of the network tests: real sockets on loopback, generous deadlines."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from client.net.host import HostLimits
from client.net.libp2p_network import Libp2pNetwork, open_network

LOOPBACK = [("127.0.0.1", 0)]
DEADLINE_S = 30.0


@asynccontextmanager
async def loopback_network(
    seed: bytes | None = None, port: int = 0, limits: HostLimits | None = None
) -> AsyncIterator[Libp2pNetwork]:
    listen = [("127.0.0.1", port)]
    with trio.fail_after(DEADLINE_S):
        async with open_network(seed or os.urandom(32), listen, limits) as network:
            yield network


NetworkFactory = Callable[..., AbstractAsyncContextManager[Libp2pNetwork]]


@pytest.fixture
def make_network() -> NetworkFactory:
    """A factory of networks on free loopback ports; the test must end within 30 s."""
    return loopback_network

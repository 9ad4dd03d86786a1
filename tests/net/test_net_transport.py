"""The seam of transports: links need nothing of TCP, and another transport nothing of the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import ModuleType

import pytest
import trio
import trio.testing

from client.net.addresses import parse_destination, parse_listen
from client.net.errors import AddressError, DialError, PortInUse
from client.net.libp2p_network import open_network
from client.net.transport import Buffer, ByteStream, Listener, Transport
from protocol.address import TRANSPORTS, Address, parse_address
from tests.support.arrivals import backward, is_up, next_inbound

HOST = "127.0.0.1"
DEADLINE_S = 30.0
PEER = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"
PAYLOAD = os.urandom(3 * 1024 * 1024)


class MemoryStream(ByteStream):
    """Bytes within this process: no more than a stream has to be able to do."""

    def __init__(self, stream: trio.StapledStream[trio.abc.SendStream, trio.abc.ReceiveStream]):
        self._stream = stream

    @property
    def remote_host(self) -> str:
        return HOST

    async def send_all(self, data: Buffer) -> None:
        await self._stream.send_all(bytes(data))

    async def receive_some(self, most: int) -> bytes:
        return bytes(await self._stream.receive_some(most))

    async def aclose(self) -> None:
        await self._stream.aclose()


class MemoryListener(Listener[MemoryStream]):
    def __init__(self, address: Address) -> None:
        self._address = address
        self.dialled, self._accepted = trio.open_memory_channel[MemoryStream](10)

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> MemoryStream:
        return await self._accepted.receive()

    async def aclose(self) -> None:
        self.dialled.close()


class MemoryTransport(Transport):
    def __init__(self) -> None:
        self.listeners: dict[int, MemoryListener] = {}

    @asynccontextmanager
    async def dial(self, address: Address) -> AsyncIterator[MemoryStream]:
        if address.port not in self.listeners:
            raise DialError(f"{address}: nobody is there")
        near, far = trio.testing.memory_stream_pair()
        await self.listeners[address.port].dialled.send(MemoryStream(far))
        async with MemoryStream(near) as stream:
            yield stream

    @asynccontextmanager
    async def listen(self, address: Address) -> AsyncIterator[MemoryListener]:
        port = address.port or 1 + len(self.listeners)
        if port in self.listeners:
            raise PortInUse(address.host, port)
        async with MemoryListener(Address("ip4", HOST, port, transport="memory")) as listener:
            self.listeners[port] = listener
            try:
                yield listener
            finally:
                del self.listeners[port]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTransport]:
    """A second transport, added as any other is: a line in the table, a module of its name."""
    module = ModuleType("client.net.memory")
    transport = module.TRANSPORT = MemoryTransport()  # type: ignore[attr-defined]
    monkeypatch.setitem(TRANSPORTS, "memory", ("udp", "memory"))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "client.net.memory", module)
    yield transport
    assert not transport.listeners


async def test_a_link_over_another_transport(memory: MemoryTransport) -> None:
    with trio.fail_after(DEADLINE_S):
        async with (
            open_network(os.urandom(32), [f"/ip4/{HOST}/udp/0/memory"]) as a,
            open_network(os.urandom(32), []) as b,
        ):
            assert a.addresses == (f"/ip4/{HOST}/udp/1/memory/p2p/{a.peer_id}",)
            assert await b.connect(a.addresses[0]) == a.peer_id
            await is_up(a, b)
            await is_up(b, a)
            await b.send(a.peer_id, backward(1), PAYLOAD)
            await a.send(b.peer_id, backward(2), PAYLOAD[::-1])
            assert (await next_inbound(a)).payload == PAYLOAD
            assert (await next_inbound(b)).payload == PAYLOAD[::-1]


async def test_members_are_called_at_whatever_they_advertise(memory: MemoryTransport) -> None:
    with trio.fail_after(DEADLINE_S):
        both = [(HOST, 0), f"/ip4/{HOST}/udp/7/memory"]
        async with (
            open_network(os.urandom(32), both) as a,
            open_network(os.urandom(32), both[:1]) as b,
        ):
            tcp, other = a.addresses
            assert parse_address(tcp).transport == "tcp"
            assert parse_address(other).transport == "memory"
            b.want({a.peer_id: [other]})
            await is_up(b, a)


async def test_what_a_transport_cannot_do_is_said_as_of_tcp(memory: MemoryTransport) -> None:
    listen = f"/ip4/{HOST}/udp/5/memory"
    async with open_network(os.urandom(32), [listen]) as network:
        with pytest.raises(DialError, match=r"udp/6/memory.*nobody is there"):
            await network.connect(f"/ip4/{HOST}/udp/6/memory/p2p/{PEER}")
        with pytest.raises(PortInUse, match=r"port 5 on 127\.0\.0\.1 is in use"):
            async with open_network(os.urandom(32), [listen]):
                raise NotImplementedError


def test_an_address_names_its_transport(memory: MemoryTransport) -> None:
    text = "/dns4/node.example.org/udp/4001/memory"
    assert parse_address(text) == Address("dns4", "node.example.org", 4001, None, "memory")
    assert str(parse_address(text)) == text
    for other in ("/udp/4001", "/tcp/4001/memory", "/udp/4001/memory/x", "/memory/4001"):
        with pytest.raises(ValueError, match=r"HOST/tcp/PORT\|.*udp/PORT/memory\["):
            parse_address(f"/ip4/1.2.3.4{other}")


def test_where_to_listen() -> None:
    here = Address("ip4", HOST, 0)
    assert parse_listen((HOST, 0)) == parse_listen(f"/ip4/{HOST}/tcp/0") == [here]
    for wrong in ("/dns4/localhost/tcp/1", f"/ip4/{HOST}/tcp/1/p2p/{PEER}", "/ip4/x/tcp/1", ""):
        with pytest.raises(AddressError, match="cannot listen on"):
            parse_listen(wrong)
    assert parse_listen(("::1", 7)) == parse_listen("/ip6/::1/tcp/7") == [Address("ip6", "::1", 7)]
    assert parse_listen(("all", 7)) == [Address("ip4", "0.0.0.0", 7), Address("ip6", "::", 7)]
    for pair in ((HOST, -1), (HOST, 65536), ("localhost", 1), ("", 1), ("fe80::1%lo", 1)):
        with pytest.raises(AddressError, match="not an IP address and port"):
            parse_listen(pair)
    with pytest.raises(AddressError, match="expected"):
        parse_destination("/ip4/127.0.0.1/tcp/0")

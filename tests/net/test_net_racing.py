"""Dialling a peer at several addresses: their order, the head start, and one connection only."""

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from client.net.addresses import Destination, parse_destination
from client.net.errors import (
    DialError,
    HandshakeFailed,
    NotCalled,
    PortInUse,
    TurnedAway,
)
from client.net.libp2p_network import open_network
from client.net.racing import HEAD_START_S, in_order, race
from client.net.tcp import TCP
from protocol.hosts import kind_of
from protocol.ids import PeerId
from tests.support.arrivals import is_up
from tests.support.loopback import Hosts, Networks

P = PeerId("12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5")
DEADLINE_S = 30.0


def at(host: str) -> Destination:
    kind = kind_of(host) if host[0].isdigit() else "dns4"
    return Destination(kind, host, 4001, P)


@pytest.mark.parametrize(
    ("addresses", "own", "order"),
    [
        # IPv6 and IPv4 take turns; private addresses of another home come last.
        (["8.8.4.4", "192.168.1.2", "2a11::1"], [], ["2a11::1", "8.8.4.4", "192.168.1.2"]),
        (["8.8.4.4", "9.9.9.9", "2a11::1"], [], ["2a11::1", "8.8.4.4", "9.9.9.9"]),
        (["8.8.4.4", "2a11::1", "2a11::2"], [], ["2a11::1", "8.8.4.4", "2a11::2"]),
        # In our own home, by its IPv4 address or its IPv6 network, private addresses come first.
        (["8.8.4.4", "192.168.1.2"], ["8.8.4.4"], ["192.168.1.2", "8.8.4.4"]),
        (["2a11::1", "192.168.1.2"], ["2a11::7"], ["192.168.1.2", "2a11::1"]),
        (["2a11::1", "192.168.1.2"], ["2a11:0:0:1::7"], ["2a11::1", "192.168.1.2"]),
        # An equal private address of our own says nothing.
        (["8.8.4.4", "192.168.1.2"], ["192.168.1.2"], ["8.8.4.4", "192.168.1.2"]),
        (["192.168.1.2", "192.168.1.2", "10.0.0.1"], [], ["192.168.1.2", "10.0.0.1"]),
        (["192.168.1.2", "node.example.org"], [], ["node.example.org", "192.168.1.2"]),
        ([], ["8.8.4.4"], []),
    ],
)
def test_addresses_are_tried_in_the_best_order(
    addresses: list[str], own: list[str], order: list[str]
) -> None:
    assert [target.host for target in in_order(map(at, addresses), own)] == order


async def test_only_one_attempt_wins(autojump_clock: trio.testing.MockClock) -> None:
    told: list[str] = []

    async def attempt(target: Destination, claim: Callable[[], None]) -> None:
        if target.host == "8.8.4.4":
            raise DialError("nobody there")
        try:
            await trio.sleep(HEAD_START_S + {"1.1.1.1": 1.0, "2.2.2.2": 0.5}[target.host])
            claim()
            with pytest.raises(HandshakeFailed, match="faster"):
                claim()
            told.append(f"{target.host} at {trio.current_time()}")
        except trio.Cancelled:
            told.append(f"not {target.host}")
            raise

    await race(attempt, map(at, ("8.8.4.4", "1.1.1.1", "2.2.2.2")))
    assert sorted(told) == [f"2.2.2.2 at {2 * HEAD_START_S + 0.5}", "not 1.1.1.1"]


@pytest.mark.parametrize(
    ("errors", "kind", "words"),
    [
        ([DialError("nobody there"), TurnedAway("full")], TurnedAway, "nobody there; full"),
        ([DialError("nobody there"), NotCalled("no")], DialError, "nobody there"),
        ([NotCalled("no"), NotCalled("no")], NotCalled, "none of its addresses is called now"),
    ],
)
async def test_after_a_failure_the_next_address_is_tried_at_once(
    autojump_clock: trio.testing.MockClock, errors: list[DialError], kind: type, words: str
) -> None:
    left = list(errors)

    async def attempt(target: Destination, claim: Callable[[], None]) -> None:
        raise left.pop(0)

    with pytest.raises(DialError) as caught:
        await race(attempt, map(at, ("1.1.1.1", "2.2.2.2")))
    assert (type(caught.value), str(caught.value)) == (kind, words)
    assert trio.current_time() == 0.0


@asynccontextmanager
async def _tarpit() -> AsyncIterator[tuple[str, list[float]]]:
    """An address that takes connections and says nothing; when each was ended by its caller."""
    ended: list[float] = []

    async def hold(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass
        ended.append(trio.current_time())

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, hold, [listener])
        yield f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}", ended
        nursery.cancel_scope.cancel()


async def test_an_address_that_swallows_all_costs_its_head_start(networks: Networks) -> None:
    async with networks() as a, networks() as b, _tarpit() as (pit, ended):
        began = trio.current_time()
        await b.connect(f"{pit}/p2p/{a.peer_id}", a.addresses[0])
        took = trio.current_time() - began
        assert HEAD_START_S <= took < 5.0  # a dial gives up after 10
        while not ended:
            await trio.sleep(0.01)
        assert ended[0] - began < 5.0
        assert b.statistics().refused == {}


async def test_somebody_else_at_an_address_does_not_keep_us_from_the_peer(
    networks: Networks,
) -> None:
    async with networks() as a, networks() as b, networks() as other:
        wrong = other.addresses[0].replace(other.peer_id, a.peer_id)
        assert await b.connect(wrong, a.addresses[0]) == a.peer_id
        assert not other.statistics().peers


async def test_all_failures_are_named(hosts: Hosts) -> None:
    async with hosts() as host:
        targets = [parse_destination(f"/ip4/127.0.0.1/tcp/{port}/p2p/{P}") for port in (1, 2)]
        with pytest.raises(DialError, match=r"tcp/1/.*refused.*tcp/2/.*refused"):
            await host.connect(targets)
        with pytest.raises(NotCalled):
            await host.connect(targets, lambda target: False)
        asked: list[int] = []
        with pytest.raises(DialError, match="tcp/2"):
            await host.connect(targets, lambda t: asked.append(t.port) or t.port == 2)  # type: ignore[func-returns-value]
        assert asked == [1, 2]


def _has_ip6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ip6 = pytest.mark.skipif(not _has_ip6(), reason="this machine has no IPv6")


@needs_ip6
async def test_one_port_for_both_kinds_and_a_link_by_either() -> None:
    with trio.fail_after(DEADLINE_S):
        async with (
            open_network(os.urandom(32), ("all", 0)) as a,
            open_network(os.urandom(32), ("all", 0)) as b,
            open_network(os.urandom(32), ("::1", 0)) as c,
        ):
            bound = a._host.bound
            assert [address.host for address in bound] == ["0.0.0.0", "::"]
            assert bound[0].port == bound[1].port != 0
            six = f"/ip6/::1/tcp/{bound[1].port}/p2p/{a.peer_id}"
            await b.connect(f"/ip4/127.0.0.1/tcp/{bound[0].port}/p2p/{a.peer_id}")
            await c.connect(six)
            await is_up(a, b)
            await is_up(a, c)
            assert {carrier.connection.ip for carrier in a._links[b.peer_id].carriers} == {
                "127.0.0.1"
            }
            assert {carrier.connection.ip for carrier in a._links[c.peer_id].carriers} == {"::1"}
            assert c.addresses == (f"/ip6/::1/tcp/{c._host.bound[0].port}/p2p/{c.peer_id}",)


@needs_ip6
@pytest.mark.parametrize("taken_host", ["0.0.0.0", "::"])
async def test_a_port_that_is_taken_for_one_kind_is_refused_for_both(taken_host: str) -> None:
    family = socket.AF_INET6 if taken_host == "::" else socket.AF_INET
    with socket.create_server((taken_host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} is in use"):
            async with TCP.listen("all", port):
                raise NotImplementedError


@needs_ip6
async def test_all_of_ipv6_is_not_all() -> None:
    async with TCP.listen("::", 0) as listener:
        (address,) = listener.addresses
        with socket.create_server(("0.0.0.0", address.port)):
            assert address.host == "::"

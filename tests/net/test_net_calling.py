"""Dialling addresses from adverts, true and invented."""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

import pytest
import trio
from trio.testing import MockClock

from client.net import calling, libp2p_network
from client.net.addresses import Destination, parse_destination
from client.net.calling import (
    BUDGET_BURST,
    HOST_CALLS,
    MAX_ADDRESSES,
    MAX_ENTRIES,
    UNPROVEN_S,
    Calls,
)
from client.net.errors import DialError
from client.net.handshake import make_identity
from client.net.host import Connection
from client.net.libp2p_network import open_network
from protocol.hosts import kind_of
from protocol.ids import PeerId
from tests.support.arrivals import is_up
from tests.support.loopback import Networks

P, Q = PeerId("p"), PeerId("q")
FAR = "8.8.4.4"


def at(peer: PeerId, ip: str, port: int) -> Destination:
    return Destination(kind_of(ip), ip, port, peer)


def calls(*own: str) -> Calls:
    return Calls(own, now=0.0)


@pytest.mark.parametrize(
    ("ip", "beside", "elsewhere"),
    [
        ("127.0.0.1", "127.0.0.77", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.77", "192.168.0.1"),
        ("10.1.2.3", "10.200.7.7", "172.16.2.3"),  # their network may be larger than a /16
        ("172.20.0.1", "172.20.0.77", "10.0.0.1"),
        ("192.168.1.1", "192.168.1.77", "10.0.0.1"),
        ("169.254.169.254", "169.254.169.77", "10.0.0.1"),
        ("100.64.0.1", "100.64.0.77", "10.0.0.1"),
        ("fd12:3456:789a:1::1", "fd12:3456:789a:1::77", "fd12:3456:789b:1::1"),
        ("::1", "::1", "fd12:3456:789b:1::1"),
        ("2001:db8::1", "2001:db8::77", "fd12:3456:789b:1::1"),
    ],
)
def test_private_ranges_are_called_where_we_have_met_somebody(
    ip: str, beside: str, elsewhere: str
) -> None:
    some = calls()
    some.met(Q, FAR)
    some.met(Q, "2a11::1")
    assert not some.may_call(at(P, ip, 4001), 0.0)
    some.met(Q, beside)
    assert some.may_call(at(P, ip, 4001), 0.0)
    assert not some.may_call(at(P, elsewhere, 4001), 0.0)


@pytest.mark.parametrize("ip6", [True, False])
def test_few_unproven_addresses_of_one_machine_are_called_in_a_minute(ip6: bool) -> None:
    """All of an IPv6 network is one."""
    some = calls()
    places = [at(P, f"2a11::{n:x}", 4001) if ip6 else at(P, FAR, n) for n in range(1, 1001)]
    assert sum(some.may_call(one, now=n % 50) for n, one in enumerate(places[:-1])) == HOST_CALLS
    assert some.may_call(places[-1], UNPROVEN_S + 50)


NOBODYS = ("0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1")
NOBODYS += ("::", "ff02::1", "fe80::1", "fec0::1", "64:ff9b::c0a8:101", "4000::1")


@pytest.mark.parametrize("ip", NOBODYS)
def test_what_is_nobodys_address_is_never_called(ip: str) -> None:
    some = calls("127.0.0.1", "::1", "192.168.1.1")
    some.met(Q, "10.0.0.1")
    some.met(Q, "2a11::1")
    assert not some.may_call(at(P, ip, 4001), 0.0)


def test_another_port_is_another_place_of_the_same_host() -> None:
    some = calls()
    some.believe(at(P, FAR, 4001))
    assert some.may_call(at(P, FAR, 4001), 0.0)
    assert all(some.may_call(at(P, FAR, 4002), now) for now in (0.0, 60.0))
    assert not some.may_call(at(P, FAR, 4002), 61.0)  # that one is not proven


def test_an_address_that_nobody_has_proven_is_called_once_a_minute() -> None:
    some = calls()
    named_by = [PeerId(f"liar-{number}") for number in range(50)]
    called = [
        now for now in range(600) for liar in named_by if some.may_call(at(liar, FAR, 22), now)
    ]
    assert called == [60 * minute for minute in range(10)]


@pytest.mark.parametrize("form", ["9.{}.{}.9", "2a11:{}:{}::1"])
def test_all_unproven_addresses_share_a_budget_and_proven_ones_do_not(form: str) -> None:
    some = calls()
    many = [form.format(number // 256, number % 256) for number in range(1000)]
    assert sum(some.may_call(at(P, ip, 1), 0.0) for ip in many) == BUDGET_BURST
    assert sum(some.may_call(at(P, ip, 1), 60.0) for ip in many) == 30
    some.believe(at(Q, FAR, 4001))
    assert all(some.may_call(at(Q, FAR, 4001), 60.0) for _ in range(100))
    assert not some.may_call(at(P, FAR, 4001), 60.0)  # another name for the same place


@pytest.mark.parametrize(("met", "ip"), [(FAR, FAR), ("2a11:0:0:2::1", "2a11:0:0:2::9")])
def test_a_peer_that_was_linked_from_there_is_called_again_soon(met: str, ip: str) -> None:
    """A machine has all of its IPv6 network."""
    some = calls()
    some.met(P, met)
    assert some.may_call(at(P, ip, 4001), 0.0)
    assert not some.may_call(at(P, ip, 4001), 1.0)
    assert some.may_call(at(P, ip, 4001), 6.0)
    assert not some.may_call(at(Q, ip, 4001), 30.0)


@pytest.mark.parametrize("ip", [FAR, "10.0.0.1"])
def test_what_the_invite_names_is_called_soon_and_no_machine_is_flooded_by_it(ip: str) -> None:
    some = calls()
    some.expect(at(P, ip, 4001))
    assert some.may_call(at(P, ip, 4001), 0.0)
    assert not some.may_call(at(P, ip, 4001), 4.0)
    assert some.may_call(at(P, ip, 4001), 6.0)
    assert not some.may_call(at(Q, ip, 4001), 30.0)  # another peer's name for the same place
    for port in range(1000):
        some.expect(at(P, ip, port))
    assert sum(some.may_call(at(P, ip, port), 30.0) for port in range(1000)) == HOST_CALLS - 2


def test_what_is_remembered_is_bounded() -> None:
    some = calls()
    for number in range(2 * MAX_ENTRIES):
        peer, ip = PeerId(str(number)), f"11.{number // 65536}.{number // 256 % 256}.{number % 256}"
        some.met(peer, ip)
        some.believe(at(peer, ip, 1))
        some.expect(at(peer, ip, 3))
        some.may_call(at(PeerId("x"), ip, 2), float(number * 10))
    tables = (some._machines, some._believed, some._named, some._called, some._called_machines)
    assert all(len(table) <= MAX_ENTRIES for table in tables)


class Victim:
    """Somebody's port on this machine, which counts who calls."""

    def __init__(self) -> None:
        self.called = 0

    async def run(self, task_status: trio.TaskStatus[int]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            task_status.started(listener.socket.getsockname()[1])
            while True:
                stream = await listener.accept()
                self.called += 1
                await trio.aclose_forcefully(stream)


async def test_adverts_do_not_make_a_node_flood_a_third_party(networks: Networks) -> None:
    victim = Victim()
    async with networks() as a, trio.open_nursery() as nursery:
        port = await nursery.start(victim.run)
        invented = [make_identity(os.urandom(32)).peer for _ in range(50)]
        a.want({peer: [f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"] * 8 for peer in invented})
        await trio.sleep(3.0)  # each would have been called eight times by now
        assert victim.called == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_loopback_is_not_called_for_those_who_were_met_elsewhere(
    networks: Networks, name: str
) -> None:
    victim = Victim()
    async with networks() as a, trio.open_nursery() as nursery:
        port = await nursery.start(victim.run)
        a._calls = Calls([], trio.current_time())  # as if it listened everywhere
        a._calls.met(a.peer_id, FAR)
        peer = make_identity(os.urandom(32)).peer
        kind = "dns4" if name == "localhost" else "ip4"
        address = f"/{kind}/{name}/tcp/{port}/p2p/{peer}"
        a.want({peer: [address]})
        assert await a.in_reach([address]) == []
        await trio.sleep(1.0)
        assert victim.called == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_whom_the_invite_names_is_dialled_until_it_is_up(
    networks: Networks, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "LIKELY_S", 0.1)
    seed, victim = os.urandom(32), Victim()
    kind = "dns4" if name == "localhost" else "ip4"
    async with networks() as a:
        a._calls = Calls([], trio.current_time())  # as if it listened everywhere
        async with trio.open_nursery() as nursery:
            port, late = await nursery.start(victim.run), make_identity(seed).peer
            invite = f"/{kind}/{name}/tcp/{port}/p2p/{late}"
            a.named([invite])
            a.want({late: [invite]})
            while victim.called < 2:  # the member is not there yet
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        async with networks(seed, port) as b:
            await is_up(a, b)


async def test_whom_the_invite_names_in_public_is_dialled_at_least_once_a_minute(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = list[float]()

    async def refuse(
        targets: Sequence[Destination], may_call: Callable[[Destination], bool]
    ) -> Connection:
        called.extend(trio.current_time() for one in targets if may_call(one))
        raise DialError("connection refused")

    monkeypatch.setattr(libp2p_network, "random", Random(1))
    async with open_network(os.urandom(32), ("127.0.0.1", 0)) as a:
        monkeypatch.setattr(a._host, "connect", refuse)
        peer = make_identity(os.urandom(32)).peer
        invite = f"/ip4/{FAR}/tcp/4001/p2p/{peer}"
        a.named([invite])
        a.want({peer: [invite]})
        await trio.sleep(1200.0)
    assert called[0] < 1.0
    pauses = [after - before for before, after in pairwise([*called, 1200.0])]
    assert max(pauses) <= 60.0, "doctor promises it"


async def test_of_many_addresses_few_are_kept_and_names_are_resolved(networks: Networks) -> None:
    async with networks() as a:
        peer = make_identity(os.urandom(32)).peer
        many = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" for port in range(1, 9)]
        assert await a.in_reach(many) == many[:MAX_ADDRESSES]
        named = f"/dns4/localhost/tcp/1/p2p/{peer}"
        assert await a.in_reach([named, "nonsense"]) == [named]
        assert [str(address) for address in (await a._resolved([named])).values()] == many[:1]


@pytest.mark.parametrize("dials", [True, False])
async def test_a_swarm_on_loopback_goes_on_calling_its_own(networks: Networks, dials: bool) -> None:
    async with networks() as a, networks() as b, networks() as c:
        a._calls = Calls([], trio.current_time())
        one, other = (a, b) if dials else (b, a)
        await one.connect(other.addresses[0])  # the invite
        await is_up(a, b)
        a.want({b.peer_id: b.addresses, c.peer_id: c.addresses})
        await is_up(a, c)
        assert parse_destination(c.addresses[0]).host == "127.0.0.1"

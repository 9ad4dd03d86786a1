"""Peers that lose their link, come back, or cross each other's dials: both ends tell the same."""

import os

import pytest
import trio

from client.net import libp2p_network, links
from client.net.handshake import make_identity
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, NetEvent, PeerDown, PeerUp
from protocol.wire.messages import Goodbye
from tests.support.arrivals import backward, is_up, say, until
from tests.support.loopback import Networks
from tests.support.relay import open_relay

MIB = 1024 * 1024
SMALLER, LARGER = sorted((os.urandom(32) for _ in range(2)), key=lambda s: make_identity(s).peer)


async def kinds(network: Libp2pNetwork, count: int) -> list[type[NetEvent]]:
    return [type(await network.events.receive()) for _ in range(count)]


async def greet(a: Libp2pNetwork, b: Libp2pNetwork) -> None:
    """Send a message each way."""
    await say(a, b.peer_id, Goodbye("from a"))
    await say(b, a.peer_id, Goodbye("from b"))
    for network, reason in ((a, "from b"), (b, "from a")):
        event = await network.events.receive()
        assert event.message == Goodbye(reason)


@pytest.mark.parametrize("seeds", [(SMALLER, LARGER), (LARGER, SMALLER)])
async def test_losses_that_only_one_side_noticed_are_told_to_both_however_full_the_events_are(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, seeds: tuple[bytes, bytes]
) -> None:
    rounds = 6
    async with networks(seeds[0]) as a:
        monkeypatch.setattr(libp2p_network, "EVENT_ITEMS", 1)
        async with networks(seeds[1]) as b, open_relay(b.addresses[0]) as way:
            for _ in range(rounds):  # nobody reads b's events meanwhile
                await a.connect(way.address)
                assert await kinds(a, 1) == [PeerUp]
                await is_up(b, a)
                (before,) = b._links.values()
                await way.forget_dialler()
                assert await kinds(a, 1) == [PeerDown]
                assert b.statistics().peers == (a.peer_id,), "it has not noticed"
            await a.connect(way.address)
            assert await kinds(a, 1) == [PeerUp]
            assert await kinds(b, 2 * rounds + 1) == [PeerUp, PeerDown] * rounds + [PeerUp]
            await greet(a, b)
            await b._deliver(before, Goodbye("late"), b"")
            assert not len(b.events), "its end was told"


@pytest.mark.parametrize("slow", ["neither", "first", "second"])
@pytest.mark.parametrize("seeds", [(SMALLER, LARGER), (LARGER, SMALLER)])
async def test_a_dial_that_crosses_a_link_already_in_use_joins_it(
    networks: Networks, seeds: tuple[bytes, bytes], slow: str
) -> None:
    async with (
        networks(seeds[0]) as a,
        networks(seeds[1]) as b,
        open_relay(a.addresses[0]) as first,
        open_relay(b.addresses[0]) as second,
    ):
        second.open = trio.Event()  # a's dial waits for an answer
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.connect, second.address)
            await b.connect(first.address)
            assert await kinds(a, 1) == await kinds(b, 1) == [PeerUp]
            await greet(a, b)
            first.pause_s = 0.1 if slow == "first" else 0.0
            second.pause_s = 0.1 if slow == "second" else 0.0
            second.open.set()
            number = 0
            while number < 200 or not (is_settled(a) and is_settled(b)):
                await say(a, b.peer_id, Goodbye(str(number)))
                await say(b, a.peer_id, Goodbye(str(number)))
                number += 1
                if number >= 200:
                    await trio.sleep(0.01)
        for network in (a, b):
            got = [await network.events.receive() for _ in range(number)]
            assert [event.message for event in got if isinstance(event, Inbound)] == [
                Goodbye(str(n)) for n in range(number)
            ]
        await greet(a, b)  # and no PeerDown before


def is_settled(network: Libp2pNetwork) -> bool:
    """Whether there is one connection, which the smaller peer dialled."""
    dialled = network.peer_id == make_identity(SMALLER).peer
    link = next(iter(network._links.values()))
    return [carrier.connection.dialled for carrier in link.carriers] == [dialled]


@pytest.mark.parametrize("steady_s", [0.0, 5.0])
async def test_a_link_that_ends_at_once_is_not_dialled_again_at_once(
    networks: Networks, monkeypatch: pytest.MonkeyPatch, steady_s: float
) -> None:
    monkeypatch.setattr(libp2p_network, "BACKOFF_FIRST_S", 60.0)
    monkeypatch.setattr(libp2p_network, "STEADY_S", steady_s, raising=False)
    async with networks(SMALLER) as a, networks(LARGER) as b:
        a.want({b.peer_id: b.addresses})
        assert await kinds(a, 1) == await kinds(b, 1) == [PeerUp]
        next(iter(b._links.values())).carriers[0].retire("ends its lanes")
        assert await kinds(a, 1) == await kinds(b, 1) == [PeerDown]
        with trio.move_on_after(0.5 if steady_s else 20.0):
            assert await kinds(a, 1) == [PeerUp]
        assert (a.statistics().peers == ()) == bool(steady_s)


async def test_an_error_on_our_side_ends_the_link_for_the_rest_of_the_client(
    networks: Networks,
) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("a fault of ours")

    async with networks() as a, networks() as b:
        a._strangers.turn = fail  # type: ignore[method-assign]
        await b.connect(a.addresses[0])
        assert await kinds(a, 1) == await kinds(b, 1) == [PeerUp]
        await say(b, a.peer_id, Goodbye("boom"))
        assert await a.events.receive() == PeerDown(b.peer_id, "an error on our side")
        assert await kinds(b, 1) == [PeerDown]
        assert not a.post(b.peer_id, Goodbye(""))


async def test_a_retired_connection_ends_its_frame_however_slow_the_line_is(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RETIRE_S", 0.5)
    payload = os.urandom(20 * MIB)
    async with networks() as a, networks() as b, open_relay(b.addresses[0]) as way:
        await a.connect(way.address)
        assert await kinds(b, 1) == [PeerUp]
        way.pause_s = 0.02
        await say(a, b.peer_id, backward(0), payload)
        await until(lambda: b.statistics().bytes_in >= MIB)
        a._links[b.peer_id].carriers[0].retire("replaced")
        event = await b.events.receive()
        assert event == Inbound(a.peer_id, backward(0), payload)
        assert await kinds(b, 1) == [PeerDown]


async def test_a_retired_connection_on_which_nothing_moves_is_given_up(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RETIRE_S", 0.2)
    async with networks() as a, networks() as b, open_relay(b.addresses[0]) as way:
        await a.connect(way.address)
        assert await kinds(a, 1) == [PeerUp]
        way.open = trio.Event()
        a._links[b.peer_id].carriers[0].retire("replaced")
        assert not a.post(b.peer_id, Goodbye(""))
        assert await kinds(a, 1) == [PeerDown]

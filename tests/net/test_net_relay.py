"""Circuits through a relay on real sockets: the two ends never dial each other."""

import os

import msgspec
import pytest
import trio

from client.net.addresses import parse_destination
from client.net.errors import DialError
from client.net.handshake import make_identity, request_protocol
from client.net.libp2p_network import Libp2pNetwork
from client.net.libp2p_patches import GuardedStream
from client.net.network import Inbound, PeerDown, PeerUp
from client.net.relay import passing
from client.net.relay.exchange import RELAY_PROTOCOL, ask
from client.net.relay.reaching import _prefix_of
from client.net.windows import INITIAL_WINDOW_BYTES
from protocol.hosts import kind_of
from protocol.relay.messages import Connect, Reserve, Status, Stop
from protocol.wire.messages import Backward, Goodbye
from tests.support.arrivals import backward, buffered_bytes, next_inbound, say, until
from tests.support.circuits import asked, circuit, linked, reserve
from tests.support.loopback import Networks

SOMEBODY = make_identity(bytes(32)).peer


def test_relays_of_one_network_are_told_by_its_prefix() -> None:
    def prefix(ip: str) -> str:
        return _prefix_of(parse_destination(f"/{kind_of(ip)}/{ip}/tcp/4001/p2p/{SOMEBODY}"))

    assert prefix("2a11:0:1:1::1") == prefix("2a11:0:1:2::1") != prefix("2a11:0:2:1::1")
    assert prefix("8.8.4.4") == prefix("8.8.4.9") != prefix("8.8.8.4")
    named = parse_destination(f"/dns4/relay.example.org/tcp/4001/p2p/{SOMEBODY}")
    assert _prefix_of(named) == "relay.example.org"


async def test_two_that_cannot_dial_each_other_meet_through_a_relay(networks: Networks) -> None:
    payloads = [b"", b"x", os.urandom(5 * 1024 * 1024), os.urandom(512 * 1024)]
    async with circuit(networks) as (a, b, relay):
        name = f"{relay.addresses[0]}/p2p-circuit/p2p/{b.peer_id}"
        assert b.reaching.addresses == [name]
        assert b.addresses == (b.addresses[0], name)
        for number, payload in enumerate(payloads):
            await say(a, b.peer_id, backward(number), payload)
            await say(b, a.peer_id, backward(number), payload)
        for number, payload in enumerate(payloads):
            assert await next_inbound(b) == Inbound(a.peer_id, backward(number), payload)
            assert await next_inbound(a) == Inbound(b.peer_id, backward(number), payload)
        assert a.relays() == {b.peer_id: relay.peer_id}
        assert b.relays() == {a.peer_id: relay.peer_id}
        assert relay.relays() == {}
        assert relay.passing.machine.circuits == 1
        assert relay.passing.machine.passed_bytes > 2 * sum(map(len, payloads))


async def test_both_halves_of_a_link_end_in_order(networks: Networks) -> None:
    """What was queued before the end still arrives."""
    async with circuit(networks) as (a, b, relay):
        assert await b.events.receive() == PeerUp(relay.peer_id)
        assert await b.events.receive() == PeerUp(a.peer_id)
        await say(a, b.peer_id, backward(0), bytes(3_000_000))
        a.post(b.peer_id, Goodbye("that was all"))
        await a.disconnect(b.peer_id, "enough")
        told = [await b.events.receive() for _ in range(3)]
        assert Inbound(a.peer_id, Goodbye("that was all"), b"") in told
        assert isinstance(told[-1], PeerDown)
        await until(lambda: not relay.passing.machine.circuits)


@pytest.mark.parametrize("side", [0, 1], ids=["asker", "target"])
async def test_the_end_of_a_link_ends_the_circuits_over_it(networks: Networks, side: int) -> None:
    async with circuit(networks) as (*ends, relay):
        relay._links[ends[side].peer_id].close("enough")
        await until(lambda: not relay.passing.machine.circuits)
        await until(lambda: not linked(ends[1 - side], ends[side]))


async def test_the_end_of_a_circuit_does_not_prove_that_its_peer_is_gone(
    networks: Networks,
) -> None:
    """A relay could otherwise make a member look as if its process had ended."""
    async with networks() as a, networks() as b:
        async with networks() as relay:
            await reserve(b, relay)
            await a.connect(b.reaching.addresses[0])
        down = await next_down(a, b)
        assert not down.by_peer


async def next_down(a: Libp2pNetwork, b: Libp2pNetwork) -> PeerDown:
    """Wait for the end of the link from a to b."""
    while True:
        event = await a.events.receive()
        if isinstance(event, PeerDown) and event.peer == b.peer_id:
            return event


async def test_a_dead_relay_is_replaced_by_the_other_one(networks: Networks) -> None:
    async with networks() as a, networks() as b, networks() as second:
        async with networks() as first:
            await reserve(b, first, second)
            a.want({b.peer_id: b.reaching.addresses})
            await until(lambda: linked(a, b))
            through = a.relays()[b.peer_id]
            if through != first.peer_id:  # the first one is the one that ends here
                await a.disconnect(b.peer_id, "the other way")
                await a.connect(f"{first.addresses[0]}/p2p-circuit/p2p/{b.peer_id}")
                a.want({b.peer_id: b.reaching.addresses})
            assert a.relays()[b.peer_id] == first.peer_id
        await until(lambda: a.relays().get(b.peer_id) == second.peer_id)
        await say(a, b.peer_id, backward(7), b"again")
        assert (await next_inbound(b)).message == backward(7)
        await until(lambda: len(b.reaching.addresses) == 1)


async def test_a_place_is_given_back_and_ends_with_the_relaying(networks: Networks) -> None:
    async with networks() as member, networks() as relay:
        await reserve(member, relay)
        machine = relay.passing.machine
        assert machine.reservations == {member.peer_id}
        member.reaching.update({}, needed=False)
        await until(lambda: not machine.reservations)
        await reserve(member, relay)
        relay.passing.offer(relays=False)
        await until(lambda: not member.reaching.relays)
        assert linked(member, relay)


async def test_a_relay_that_ends_what_it_has_granted_is_left_alone(networks: Networks) -> None:
    """Each time our addresses change, which is told to all the swarm."""
    async with networks() as member, networks() as relay:
        asked = 0

        async def end(*_: object) -> None:
            nonlocal asked
            asked += 1

        relay.passing._hold = end  # type: ignore[method-assign]
        relay.passing.offer(relays=True)
        member.reaching.update({relay.peer_id: [relay.addresses[0]]}, needed=True)
        await until(lambda: asked > 0)
        await trio.sleep(2.5)
        assert asked == 1
        assert member.reaching.addresses == []


async def test_a_relay_whose_connection_ends_is_asked_again_at_once(networks: Networks) -> None:
    async with networks() as member, networks() as relay:
        await reserve(member, relay)
        for way in range(8):
            before = member.reaching._reserved[relay.peer_id]
            (link,) = relay._links.values()
            if way % 2:
                link.close("another one takes over")
            else:
                link.carriers[0].retire("another one takes over")
            await until(lambda: member.reaching._reserved.get(relay.peer_id) not in (None, before))  # noqa: B023
            assert relay.passing.machine.reservations == {member.peer_id}


async def test_who_is_no_member_any_more_loses_its_place(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "REVIEW_S", 0.1)
    async with networks() as member, networks() as relay:
        await reserve(member, relay)
        machine = relay.passing.machine
        await trio.sleep(0.3)
        assert machine.reservations == {member.peer_id}
        relay.is_member = lambda _peer: False  # type: ignore[method-assign]
        await until(lambda: not (machine.reservations or member.reaching.relays))
        assert linked(member, relay)


async def test_a_relay_cannot_take_the_peers_place(networks: Networks) -> None:
    """It swaps identities: it asks somebody else than the target."""
    async with networks() as a, networks() as b, networks() as c, networks() as relay:
        await reserve(b, relay)
        await reserve(c, relay)
        honest = relay.direct
        relay.direct = lambda peer: honest(c.peer_id if peer == b.peer_id else peer)  # type: ignore[method-assign]
        with pytest.raises(DialError, match="PeerIDMismatchesPubkey"):
            await a.connect(b.reaching.addresses[0])
        assert not linked(a, b)
        assert not linked(a, c)


async def test_who_asks_is_who_comes(networks: Networks) -> None:
    """The relay says that another peer asks than the one that then proves its identity."""
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        machine = relay.passing.machine
        ask_target = machine._on_connect

        def lie(*given: object) -> object:
            assert ask_target(*given) == (Stop(a.peer_id), None)  # type: ignore[arg-type]
            return Stop(relay.peer_id), None

        machine._on_connect = lie  # type: ignore[method-assign,assignment]
        with pytest.raises(DialError):
            await a.connect(b.reaching.addresses[0])
        assert b.statistics().refused["circuit-identity"] == 1


async def test_there_are_no_circuits_over_circuits(networks: Networks) -> None:
    async with circuit(networks) as (a, b, _), networks() as c:
        await reserve(c, b)
        b.passing.offer(relays=True)
        with pytest.raises(DialError, match="only through another relay"):
            await a.connect(f"{b.addresses[0]}/p2p-circuit/p2p/{c.peer_id}")
        for message in (Reserve(), Connect(c.peer_id)):
            assert await asked(a, b, message) == Status("over-a-circuit")
        assert b.statistics().refused["relay-loop"] == 2


FOR_ANOTHER = msgspec.msgpack.encode(["Reserve", SOMEBODY])
GARBAGE = [b"\xff\xff", b"\x00\x03abc", b"\x00\x00", bytes([0, len(FOR_ANOTHER)]) + FOR_ANOTHER]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_costs_points_and_one_connection(networks: Networks, garbage: bytes) -> None:
    async with networks() as a, networks() as relay, networks() as b:
        await a.connect(relay.addresses[0])
        await reserve(b, relay)
        connection = a.direct(relay.peer_id)
        stream = await connection.session.open_stream()
        await request_protocol(GuardedStream(stream), RELAY_PROTOCOL)
        await stream.send_all([garbage])
        stream.send_eof()
        await until(lambda: not linked(a, relay))
        assert linked(b, relay)
        assert relay.passing.machine.reservations == {b.peer_id}


async def test_a_slow_reader_stops_its_sender_and_fills_no_memory(networks: Networks) -> None:
    """The target takes nothing: of a flood, the relay holds one window."""
    async with networks() as a, networks() as b, networks() as relay:
        await reserve(b, relay)
        b.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        await a.connect(relay.addresses[0])
        connection = a.direct(relay.peer_id)
        stream, answer = await ask(connection, Connect(b.peer_id))
        assert answer == Status("ok")
        sent = 0
        with trio.move_on_after(3):
            while True:
                await stream.send_all([bytes(64 * 1024)])
                sent += 64 * 1024
        held = relay._links[a.peer_id].connection
        assert buffered_bytes(held.session) <= INITIAL_WINDOW_BYTES
        assert sent < 8 * 1024 * 1024
        assert linked(a, relay)
        assert linked(b, relay)


async def test_a_direct_connection_takes_over_from_a_relayed_one_in_the_midst_of_tensors(
    networks: Networks,
) -> None:
    """Nothing is lost, doubled or out of order, and the rest of the client notices nothing."""
    async with circuit(networks) as (a, b, relay), trio.open_nursery() as nursery:
        got: dict[Libp2pNetwork, list[int]] = {a: [], b: []}
        over = trio.Event()

        async def send(one: Libp2pNetwork, other: Libp2pNetwork) -> None:
            number = 0
            while not over.is_set():
                await say(one, other.peer_id, backward(number), bytes(50_000))
                number += 1
            await until(lambda: len(got[other]) >= number)

        async def take(one: Libp2pNetwork, other: Libp2pNetwork) -> None:
            async for event in one.events:
                assert not isinstance(event, PeerDown)
                if isinstance(event, PeerUp):
                    assert not got[one]
                if isinstance(event, Inbound) and isinstance(event.message, Backward):
                    assert event.peer == other.peer_id
                    got[one].append(event.message.microbatch)

        nursery.start_soon(take, a, b)
        nursery.start_soon(take, b, a)
        async with trio.open_nursery() as senders:
            senders.start_soon(send, a, b)
            senders.start_soon(send, b, a)
            await until(lambda: len(got[a]) > 20 and len(got[b]) > 20)
            assert a.relays()
            a.want({b.peer_id: b.addresses})
            await until(lambda: not a.relays() and not b.relays())
            before = len(got[a]), len(got[b])
            await until(lambda: len(got[a]) > before[0] + 20 and len(got[b]) > before[1] + 20)
            over.set()
        for numbers in got.values():
            assert numbers == list(range(len(numbers)))
        await until(lambda: not relay.passing.machine.circuits)
        nursery.cancel_scope.cancel()


async def test_who_comes_directly_without_a_word_has_begun_anew(networks: Networks) -> None:
    """The old process's circuit may still stand; the new one knows nothing of the link."""
    seed = os.urandom(32)
    async with networks() as a, networks() as relay, networks(seed) as old:
        await reserve(a, relay)
        await old.connect(a.reaching.addresses[0])
        await until(lambda: linked(a, old))
        async with networks(seed) as new:
            await new.connect(a.addresses[0])
            down = await next_down(a, new)
            assert not down.by_peer

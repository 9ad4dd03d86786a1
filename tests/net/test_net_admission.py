"""Peers that have proved an identity and nothing else: what they get before their Hello counts."""

import contextlib

import pytest
import trio

from client.net.connection_limiter import HostLimits
from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound, PeerDown, PeerUp
from client.net.strangers import MESSAGES_BURST, MESSAGES_PER_S, Strangers
from client.net.windows import INITIAL_WINDOW_BYTES
from protocol.wire.messages import Goodbye, Heartbeat, Hello, Message
from tests.hostile.bare import bare_link
from tests.support.arrivals import backward, buffered_bytes, is_up, next_inbound, say, until
from tests.support.loopback import Networks
from tests.support.protocol_examples import peer

HELLO = Hello(1, None, "test")
PATIENT = HostLimits(hello_s=20.0)


async def linked(member: Libp2pNetwork, other: Libp2pNetwork) -> None:
    await other.connect(member.addresses[0])
    await is_up(member, other)
    assert await member.events.receive() == PeerUp(other.peer_id)


async def test_a_peer_without_hello_is_cut(networks: Networks) -> None:
    async with networks(limits=HostLimits(hello_s=0.3)) as a, networks() as silent:
        await linked(a, silent)
        assert await a.events.receive() == PeerDown(silent.peer_id, "no Hello in time")
        assert a.statistics().refused["no-hello"] == 1


async def test_who_was_admitted_stays(networks: Networks) -> None:
    async with networks(limits=HostLimits(hello_s=1.5)) as a, networks() as b:
        await linked(a, b)
        await say(b, a.peer_id, HELLO)
        assert await a.events.receive() == Inbound(b.peer_id, HELLO, b"")
        a.admit(b.peer_id)
        await trio.sleep(2.0)
        await say(b, a.peer_id, Goodbye("1"))
        assert (await next_inbound(a)).message == Goodbye("1")


async def test_the_link_by_hand_of_the_attacks_is_heard(networks: Networks) -> None:
    async with networks() as a, bare_link(a.addresses[0], "ab" * 32) as link:
        with trio.fail_after(10):
            assert isinstance((await next_inbound(a)).message, Hello)
            await link.say(Goodbye("1"))
            assert (await next_inbound(a)).message == Goodbye("1")


async def test_nothing_but_greetings_is_taken_before_and_nothing_is_lost(
    networks: Networks,
) -> None:
    async with networks(limits=PATIENT) as a, networks() as b, trio.open_nursery() as nursery:
        await linked(a, b)
        await say(b, a.peer_id, HELLO)
        await say(b, a.peer_id, Goodbye("2"))
        await say(b, a.peer_id, Heartbeat(1, []))
        payload = bytes(4 * 1024 * 1024)
        nursery.start_soon(say, b, a.peer_id, backward(1), payload)
        assert [(await next_inbound(a)).message for _ in range(2)] == [HELLO, Goodbye("2")]
        (carrier,) = a._links[b.peer_id].carriers
        while buffered_bytes(carrier.connection.session) < 0.99 * INITIAL_WINDOW_BYTES:
            await trio.sleep(0.01)
        with trio.move_on_after(0.3):
            await a.events.receive()
            raise AssertionError("heard before it was admitted")
        assert buffered_bytes(carrier.connection.session) <= 2 * INITIAL_WINDOW_BYTES
        a.admit(b.peer_id)
        a.members([b.peer_id])
        heard = [await next_inbound(a) for _ in range(2)]
        assert {len(event.payload) for event in heard} == {0, len(payload)}


async def test_what_was_meant_for_an_earlier_link_does_not_hold_up_the_greeting(
    networks: Networks,
) -> None:
    """A member that has not heard of its link's end goes on sending, by the next link then."""
    async with networks(limits=PATIENT) as a, networks() as b:
        await linked(a, b)
        for number in range(20):
            await say(b, a.peer_id, Heartbeat(number, []))
        await say(b, a.peer_id, HELLO)
        assert (await next_inbound(a)).message == HELLO
        a.admit(b.peer_id)
        await say(b, a.peer_id, Heartbeat(100, []))
        assert (await next_inbound(a)).message == Heartbeat(100, [])


@pytest.mark.parametrize(("message", "count"), [(Heartbeat(1, []), 3000), (HELLO, 100)])
async def test_who_only_greets_or_never_does_is_not_listened_to_for_ever(
    networks: Networks, message: Message, count: int
) -> None:
    async with networks(limits=PATIENT) as a, networks() as b:
        await linked(a, b)
        with contextlib.suppress(Exception):
            for _ in range(count):
                await say(b, a.peer_id, message)
        await until(lambda: not a.statistics().peers)
        assert a.statistics().refused["greeting-flood"] == 1


@pytest.mark.parametrize("member", [True, False])
async def test_members_do_not_wait_behind_what_strangers_say(
    networks: Networks, member: bool
) -> None:
    """Strangers' messages are taken at a rate; it would take ten times as long for as many more."""
    late_s = 0.7 if not member else 7.0
    count = int(MESSAGES_BURST + late_s / 0.7 * MESSAGES_PER_S)
    async with networks(limits=PATIENT) as a, networks() as b, trio.open_nursery() as nursery:
        await linked(a, b)
        a.admit(b.peer_id)
        a.members([b.peer_id] if member else [])

        async def flood() -> None:
            for number in range(count):
                await say(b, a.peer_id, Heartbeat(number, []))

        nursery.start_soon(flood)
        began = trio.current_time()
        for _ in range(count):
            await next_inbound(a)
        assert (trio.current_time() - began > late_s) is (not member)


async def test_what_a_newcomer_sends_first_is_read_at_once_and_much_more_at_a_rate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    took, began = Strangers(lambda peer: False).intake(peer(1)), trio.current_time()
    await took(300_000, 1000)  # the records of a large swarm
    assert trio.current_time() == began
    await took(1_000_000, 100)
    assert 20 < trio.current_time() - began < 40

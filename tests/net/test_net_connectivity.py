"""Links that have died in silence, and clocks that jump, on real sockets."""

import os
from contextlib import AbstractAsyncContextManager

import trio

from client.clock import NodeClock
from client.net.connectivity import surroundings
from client.net.libp2p_network import Libp2pNetwork, open_network
from client.net.network import PeerDown, PeerUp
from protocol.effects import Explain
from protocol.wire.messages import Goodbye
from tests.support.arrivals import is_up, next_inbound, say, until
from tests.support.loopback import Networks
from tests.support.relay import open_relay

DEADLINE_S, JUMP_S = 30.0, 15.0


async def test_who_does_not_answer_is_dialled_beside_the_link(networks: Networks) -> None:
    """Its line is dead, and a router in between says nothing: only the silence tells."""
    async with networks() as a, networks() as b, open_relay(b.addresses[0]) as way:
        await a.connect(way.address)
        assert await a.events.receive() == PeerUp(b.peer_id)
        way.open = trio.Event()  # nothing that b says arrives any more
        began = trio.current_time()
        a.want({b.peer_id: b.addresses})
        assert isinstance(await a.events.receive(), PeerDown)
        assert await a.events.receive() == PeerUp(b.peer_id)
        assert trio.current_time() - began < DEADLINE_S / 2  # silence alone ends links after 20 s
        for kind in (PeerUp, PeerDown, PeerUp):
            assert isinstance(await b.events.receive(), kind)
        await say(a, b.peer_id, Goodbye("here"))
        assert (await next_inbound(b)).message == Goodbye("here")


async def test_who_was_only_slow_keeps_the_link(networks: Networks) -> None:
    async with (
        networks() as a,
        networks() as b,
        open_relay(b.addresses[0]) as way,
        open_relay(b.addresses[0]) as shut,
    ):
        await a.connect(way.address)
        assert await a.events.receive() == PeerUp(b.peer_id)
        way.open, shut.open = trio.Event(), trio.Event()
        link = a._links[b.peer_id]
        await until(lambda: link.in_doubt)
        a.want({b.peer_id: [shut.address]})  # no connection gets through either
        await until(lambda: shut.streams)
        assert link.in_doubt
        way.open.set()
        await until(lambda: not link.in_doubt)
        await say(b, a.peer_id, Goodbye("late"))
        assert (await next_inbound(a)).message == Goodbye("late")
        assert a._links[b.peer_id] is link


class Jumping(NodeClock):
    """A clock that jumps as one does that counts the time of a suspend."""

    ahead_s = 0.0

    def current_time(self) -> float:
        return super().current_time() + self.ahead_s


def test_a_clock_that_jumps_tells_of_a_sleep_and_the_links_that_survived_stay() -> None:
    clock = Jumping()
    told: list[str] = []

    def explain(effect: Explain) -> None:
        told.append(effect.words)

    async def main() -> None:
        with trio.fail_after(DEADLINE_S + JUMP_S):
            await sleep_once()

    async def sleep_once() -> None:
        async with listening() as a, listening() as b:
            a.watch.explain = explain
            await b.connect(a.addresses[0])
            await is_up(a, b)
            await until(lambda: b.peer_id in a.watch._known)  # it has looked at the link
            link = a._links[b.peer_id]
            clock.ahead_s = JUMP_S
            await until(lambda: told)
            assert a._links[b.peer_id] is link
            assert link.works

    trio.run(main, clock=clock)
    (words,) = told
    assert words.startswith("this machine slept for 1")
    assert "linked again with 1 of 1 after" in words


def listening() -> AbstractAsyncContextManager[Libp2pNetwork]:
    return open_network(os.urandom(32), ("127.0.0.1", 0))


def test_this_machine_has_the_addresses_that_others_see() -> None:
    here = surroundings()
    assert not any(host.startswith(("127.", "fe80")) for host in here.hosts)
    assert here == surroundings()


async def test_what_the_world_knows_is_renewed_after_a_change(networks: Networks) -> None:
    async with networks() as a:
        renewed: list[Libp2pNetwork] = []
        a.watch.renew = lambda: renewed.append(a)
        a.watch._surroundings = None
        a.watch.looked(surroundings(), trio.current_time())
        before = surroundings()
        a.watch._surroundings = type(before)(before.hosts | {"10.9.9.9"}, before.routers)
        await until(lambda: renewed)

"""Attacks on a relay and on those behind it, on real sockets: what becomes of the honest ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from client.net.connection_limiter import HostLimits
from client.net.host import Connection
from client.net.libp2p_network import Libp2pNetwork
from client.net.pacing import Pacer
from client.net.relay import exchange, passing
from client.net.relay.shares import MAX_PIECE_BYTES
from client.net.yamux import YamuxStream
from protocol.ids import PeerId
from protocol.relay.messages import Connect
from protocol.relay.server import RelayLimits
from protocol.token_bucket import Rate
from tests.support.arrivals import until
from tests.support.circuits import asked, circuit, circuit_to, fill, linked, reserve
from tests.support.loopback import Networks
from tests.support.protocol_examples import peer
from tests.support.relay import open_relay

MANY_OF_ONE = RelayLimits(circuits_of_pair=32, asks_of_pair=Rate(1.0, 64))
"""So that one asker fills a line with circuits."""


async def until_blocked(connection: Connection) -> None:
    """Wait until the other side's line takes nothing in the midst of a frame."""
    before = -1
    while not connection.session._usual or before != connection.bytes_out:
        before = connection.bytes_out
        await trio.sleep(0.2)


@asynccontextmanager
async def blocked(
    networks: Networks, relay: Libp2pNetwork, b: Libp2pNetwork
) -> AsyncIterator[tuple[Connection, int]]:
    """The relay's connection to b, whose line takes nothing, so that half a frame is written, and
    how many circuits fill it; at the end they break off, and the line takes all again."""
    async with open_relay(relay.addresses[0]) as line:
        relay.passing.machine.limits = MANY_OF_ONE
        await reserve(b, relay, at=line.address)
        serve = b.serve_circuit
        b.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        to_b = relay.direct(b.peer_id)
        async with networks() as a, trio.open_nursery() as nursery:
            await a.connect(relay.addresses[0])
            streams = [await circuit_to(a, relay, b) for _ in range(24)]
            line.open = trio.Event()
            for stream in streams:
                nursery.start_soon(fill, stream)
            await until_blocked(to_b)
            yield to_b, len(streams)
            nursery.cancel_scope.cancel()
        await until(lambda: not linked(relay, a) and not relay.passing.machine.circuits)
        line.open.set()
        b.serve_circuit = serve  # type: ignore[method-assign]
        assert to_b is relay.direct(b.peer_id)
        async with networks() as c:
            await c.connect(b.reaching.addresses[0])


async def test_who_asks_or_breaks_off_while_a_line_takes_nothing_cuts_no_link_but_its_own(
    networks: Networks,
) -> None:
    async with networks() as relay, networks() as b, blocked(networks, relay, b) as (to_b, count):
        before = set(to_b.session._streams)
        async with networks() as hostile, trio.open_nursery() as asking:
            await hostile.connect(relay.addresses[0])
            asking.start_soon(asked, hostile, relay, Connect(b.peer_id))
            await until(lambda: to_b.session._streams.keys() - before)
            asking.cancel_scope.cancel()
        await until(lambda: relay.passing.machine.circuits == count)
        await until(lambda: to_b.session._streams.keys() == before)


@pytest.mark.parametrize("end", ["send_eof", "reset"])
async def test_a_circuit_lasts_no_longer_than_either_of_its_streams(
    networks: Networks, end: str
) -> None:
    """Or whoever is silent would hold its place for ever."""
    async with networks() as relay, networks() as a, networks() as b:
        await reserve(b, relay)
        theirs: list[YamuxStream] = []
        serve = lambda stream, relay, asker: theirs.append(stream)  # noqa: E731
        b.serve_circuit = serve  # type: ignore[method-assign]
        await a.connect(relay.addresses[0])
        for ended_by_b in (False, True):
            ours = await circuit_to(a, relay, b)
            assert relay.passing.machine.circuits == 1
            getattr(theirs[-1] if ended_by_b else ours, end)()
            await until(lambda: not relay.passing.machine.circuits)


async def test_a_target_that_never_answers_holds_no_place(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ANSWER_S", 0.3)
    async with networks() as relay, networks() as a, networks() as b:
        await reserve(b, relay)
        b.reaching.serve = lambda *_: trio.sleep_forever()  # type: ignore[method-assign]
        await a.connect(relay.addresses[0])
        with suppress(trio.TooSlowError):
            await asked(a, relay, Connect(b.peer_id))
        await until(lambda: relay.passing.machine.refused["unreachable"] == 1)
        await until(lambda: not relay.passing.machine.circuits)


async def test_each_side_of_a_circuit_sends_out_of_its_own_share(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = lambda link: f"prefix of {link.peer}"  # noqa: E731
    monkeypatch.setattr(passing, "_prefix", shown)
    async with circuit(networks) as (a, b, relay):
        senders, turn = set[tuple[PeerId, str]](), relay.passing._shares.turn

        async def noted(sender: tuple[PeerId, str], size_bytes: int) -> None:
            senders.add(sender)
            await turn(sender, size_bytes)

        monkeypatch.setattr(relay.passing._shares, "turn", noted)
        a.working()[b.peer_id].session.ping()
        await until(lambda: len(senders) == 2)
        assert senders == {(one.peer_id, f"prefix of {one.peer_id}") for one in (a, b)}


async def test_a_greeting_makes_no_member(networks: Networks) -> None:
    """Or the bound on what strangers have would hold for nobody."""
    async with networks(limits=HostLimits(hello_s=20.0)) as relay, networks() as a, networks() as b:
        await reserve_as_member(b, relay)
        b.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        await a.connect(relay.addresses[0])
        await circuit_to(a, relay, b)
        (circuit,) = relay.passing.machine._circuits
        relay.admit(a.peer_id)
        assert not circuit.member
        relay.members({a.peer_id, b.peer_id})
        assert circuit.member


async def reserve_as_member(member: Libp2pNetwork, relay: Libp2pNetwork) -> None:
    relay.members({member.peer_id})
    await member.connect(relay.addresses[0])
    await until(lambda: linked(relay, member))
    relay.admit(member.peer_id)
    await reserve(member, relay)


async def test_a_relay_that_relays_no_more_keeps_to_its_rate_until_the_end(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        ours = SimpleNamespace(peer_id=peer(0))
        relay = passing.PassingOn(ours, nursery, Pacer(0))  # type: ignore[arg-type]
        relay.offer(relays=True, rate_bytes_per_s=MAX_PIECE_BYTES)
        relay.offer(relays=False, drain_s=30.0)
        for _ in range(8):
            await relay._shares.turn((peer(1), "203.0.113"), MAX_PIECE_BYTES)
        assert trio.current_time() > 5
        nursery.cancel_scope.cancel()

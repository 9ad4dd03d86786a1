"""Attacks on a relay and on those behind it, on real sockets: what becomes of the honest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from client.net.host import Connection
from protocol.relay.messages import Connect
from tests.support.circuits import asked, circuit_to, fill, linked, reserve, until
from tests.support.relay import open_relay

if TYPE_CHECKING:
    from tests.net.conftest import Networks


async def until_blocked(connection: Connection) -> None:
    """Wait until the other side's line takes nothing in the midst of a frame."""
    before = -1
    while not connection.session._turns._taken or before != connection.bytes_out:
        before = connection.bytes_out
        await trio.sleep(0.2)


async def test_who_breaks_off_in_the_midst_of_a_frame_cuts_no_link_but_its_own(
    networks: Networks,
) -> None:
    """The target's line takes nothing just now, so the relay has written half a frame to it."""
    async with networks() as relay, networks() as b, open_relay(relay.addresses[0]) as line:
        await reserve(b, relay, at=line.address)
        serve = b.serve_circuit
        b.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        to_b = relay.direct(b.peer_id)
        assert to_b is not None
        async with networks() as a, trio.open_nursery() as nursery:
            await a.connect(relay.addresses[0])
            streams = [await circuit_to(a, relay, b) for _ in range(32)]
            line.open = trio.Event()
            for stream in streams:
                nursery.start_soon(fill, stream)
            await until_blocked(to_b)
            nursery.cancel_scope.cancel()
        await until(lambda: not linked(relay, a) and not relay.passing.machine.circuits)
        line.open.set()
        b.serve_circuit = serve  # type: ignore[method-assign]
        assert to_b is relay.direct(b.peer_id)
        async with networks() as c:
            await c.connect(b.reaching.addresses[0])


async def test_who_asks_and_breaks_off_leaves_nothing_behind(networks: Networks) -> None:
    """The relay cannot ask the target just now: its line takes nothing."""
    async with networks() as relay, networks() as b, open_relay(relay.addresses[0]) as line:
        await reserve(b, relay, at=line.address)
        b.serve_circuit = lambda stream, relay, asker: None  # type: ignore[method-assign]
        to_b = relay.direct(b.peer_id)
        assert to_b is not None
        async with networks() as a, trio.open_nursery() as nursery:
            await a.connect(relay.addresses[0])
            streams = [await circuit_to(a, relay, b) for _ in range(24)]
            line.open = trio.Event()
            for stream in streams:
                nursery.start_soon(fill, stream)
            await until_blocked(to_b)
            before = set(to_b.session._streams)
            async with networks() as hostile, trio.open_nursery() as asking:
                await hostile.connect(relay.addresses[0])
                asking.start_soon(asked, hostile, relay, Connect(b.peer_id))
                await until(lambda: to_b.session._streams.keys() - before)
                asking.cancel_scope.cancel()
            await until(lambda: relay.passing.machine.circuits == len(streams))
            await until(lambda: to_b.session._streams.keys() == before)
            nursery.cancel_scope.cancel()
            line.open.set()

"""Rates that the owner sets: exact in the bucket, measured in bytes on real sockets."""

import pytest
import trio

from client.net.libp2p_network import Libp2pNetwork
from client.net.network import Inbound
from client.net.pacing import MIN_BURST_BYTES, Pacer, Rates
from protocol.wire.messages import Backward, Chunk, Goodbye
from tests.support.arrivals import backward, is_up, say
from tests.support.loopback import Networks

MB = 1_000_000


# --- the bucket ----------------------------------------------------------------------------------


async def test_small_messages_pass_those_that_wait_and_are_charged(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pacer = Pacer(MB)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pacer.lanes["bulk"], 10 * MB)
        await trio.sleep(0)
        await pacer.lanes["control"](MB // 2)
        assert trio.current_time() == began
    await pacer.lanes["bulk"](0)  # behind both
    assert trio.current_time() - began == pytest.approx(10.5 - MIN_BURST_BYTES / MB)


async def test_a_flood_of_small_messages_waits_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pacer, began = Pacer(MB), trio.current_time()
    for _ in range(100):
        await pacer.lanes["control"](MB // 10)
    assert trio.current_time() - began > 8


# --- real sockets --------------------------------------------------------------------------------


async def received_bytes(network: Libp2pNetwork, count: int) -> int:
    """Take so many tensors; return their bytes."""
    total = 0
    while count:
        event = await network.events.receive()
        if isinstance(event, Inbound) and isinstance(event.message, Backward):
            total, count = total + len(event.payload), count - 1
    return total


async def test_the_rate_is_one_for_all_links(networks: Networks) -> None:
    async with networks() as one, networks() as other, networks() as near:
        for far in (one, other):
            await near.connect(far.addresses[0])
        near.limit(Rates(upload_bytes_per_s=2 * MB))
        began = trio.current_time()
        for number in range(4):
            for far in (one, other):
                await say(near, far.peer_id, backward(number), bytes(MB // 2))
        assert await received_bytes(one, 4) + await received_bytes(other, 4) == 4 * MB
        assert trio.current_time() - began >= 1.5


async def test_receiving_is_held_to_the_rate(networks: Networks) -> None:
    async with networks() as far, networks(rates=Rates(download_bytes_per_s=MB)) as near:
        await far.connect(near.addresses[0])
        began, before = trio.current_time(), near.statistics().bytes_in
        for number in range(4):
            await say(far, near.peer_id, backward(number), bytes(MB))
        while trio.current_time() - began < 2.0:  # what crosses the socket, not what is delivered
            await trio.sleep(0.05)
            came, taken_s = near.statistics().bytes_in - before, trio.current_time() - began
            assert came <= MB * taken_s + 2.5 * MB
        assert await received_bytes(near, 4) == 4 * MB
        assert trio.current_time() - began >= 2.5


@pytest.mark.parametrize("where", ["upload", "download"])
async def test_heartbeats_are_not_behind_tensors(networks: Networks, where: str) -> None:
    rates = Rates(**{f"{where}_bytes_per_s": MB})
    limited, free = networks(rates=rates), networks()
    async with limited as near, free as far:
        await near.connect(far.addresses[0])
        sender, taker = (near, far) if where == "upload" else (far, near)
        await is_up(sender, taker)
        queued = trio.current_time()
        for number in range(10):  # ten seconds of tensors
            await say(sender, taker.peer_id, backward(number), bytes(MB))
        began = trio.current_time()
        sender.post(taker.peer_id, Goodbye("first"))
        tensors = 0
        while True:
            event = await taker.events.receive()
            if isinstance(event, Inbound):
                if isinstance(event.message, Goodbye):
                    break
                tensors += 1
        came = trio.current_time()
        assert tensors <= 2 + (came - queued)  # those of the burst and the window, one a second
        assert came - began < 5


async def test_tensors_are_not_behind_state_for_newcomers(networks: Networks) -> None:
    """Nor behind what goes to others; and the state comes, too."""
    limited = networks(rates=Rates(upload_bytes_per_s=4 * MB))
    async with networks() as newcomer, networks() as next_stage, limited as near:
        for far in (newcomer, next_stage):
            await near.connect(far.addresses[0])
        for index in range(16):
            await say(near, newcomer.peer_id, Chunk(bytes(32), index), bytes(MB // 2))
        for number in range(10):
            await say(near, next_stage.peer_id, backward(number), bytes(MB // 2))
        order = list[str]()

        async def note(network: Libp2pNetwork, kind: type[Chunk | Backward], count: int) -> None:
            while order.count(kind.__name__) < count:
                event = await network.events.receive()
                if isinstance(event, Inbound) and isinstance(event.message, kind):
                    order.append(kind.__name__)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, newcomer, Chunk, 16)
            nursery.start_soon(note, next_stage, Backward, 10)
        last_tensor = len(order) - 1 - order[::-1].index("Backward")
        assert order[:last_tensor].count("Chunk") <= 6  # a third of the tensors, and the first
        assert order.count("Chunk") == 16


async def test_a_limit_that_changes_holds_for_lanes_that_are_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pacer, began = Pacer(0), trio.current_time()
    lane = pacer.lanes["bulk"]
    await lane(50 * MB)
    assert trio.current_time() == began
    pacer.limit(MB)
    for _ in range(10):
        await lane(MB)
    assert trio.current_time() - began == pytest.approx(10, abs=1)
    pacer.limit(0)
    await lane(50 * MB)
    assert trio.current_time() - began == pytest.approx(10, abs=1)

"""Peers that ask and do not read: the amount they read counts, not the times of reading."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from client.net.transport import Buffer
from client.net.windows import INITIAL_WINDOW_BYTES
from client.net.yamux import FLOOR_BYTES_PER_S, YamuxSession, YamuxStream
from protocol.relay.holding import Room
from protocol.wire.messages import Chunk
from tests.support.arrivals import is_up, say
from tests.support.loopback import Networks


def stream() -> YamuxStream:
    async def write(frame: Sequence[Buffer], *, urgent: bool) -> None:
        await trio.lowlevel.checkpoint()

    session = SimpleNamespace(
        closed=False, trip_s=0.1, budget=Room(0), slice_bytes=65000, write=write
    )
    return YamuxStream(cast(YamuxSession, session), 1)


async def send(ours: YamuxStream, size: int, took_s: list[float]) -> None:
    began = trio.current_time()
    try:
        await ours.send_all([bytes(INITIAL_WINDOW_BYTES + size)], stall_s=30)
    except trio.TooSlowError:
        took_s.append(trio.current_time() - began)


@pytest.mark.parametrize(("taken", "every_s"), [(1, 10.0), (1, 0.1), (10_000, 10.0)])
async def test_who_takes_a_little_now_and_then_is_given_up(
    nursery: trio.Nursery, autojump_clock: MockClock, taken: int, every_s: float
) -> None:
    ours, took_s = stream(), list[float]()
    nursery.start_soon(send, ours, 10**6, took_s)
    for _ in range(int(200 / every_s)):
        await trio.sleep(every_s)
        ours.on_window(taken)
    assert took_s
    assert took_s[0] <= 30 * 4


async def test_a_slow_line_with_pauses_is_waited_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    ours, failed_s = stream(), list[float]()
    nursery.start_soon(send, ours, 10**6, failed_s)
    for number in range(400):
        await trio.sleep(1 if number % 40 else 20)
        ours.on_window(2 * FLOOR_BYTES_PER_S)
    assert not failed_s
    assert ours.sent_bytes == INITIAL_WINDOW_BYTES + 10**6


async def test_what_waits_for_a_peer_is_known_until_it_is_sent(networks: Networks) -> None:
    chunk, size = Chunk(bytes(32), 0), 2 * 1024 * 1024
    async with networks() as a, networks() as b, trio.open_nursery() as nursery:
        await b.connect(a.addresses[0])
        await is_up(a, b)
        link = b._links[a.peer_id]
        a.events._max_bytes = 1  # nobody takes them there: the window closes
        for _ in range(20):
            await say(b, a.peer_id, chunk, bytes(size))
        waiting = b.unsent_bytes(a.peer_id, "background")
        assert 0 < waiting <= 20 * (size + 100)
        sent = trio.Event()

        async def wait() -> None:
            await b.wait_sent(a.peer_id, "background")
            sent.set()

        nursery.start_soon(wait)
        await trio.sleep(0.2)
        assert not sent.is_set()
        a.events._max_bytes = 10**9
        with trio.move_on_after(20):
            while not sent.is_set():
                if len(a.events):
                    await a.events.receive()
                await trio.sleep(0)
        assert sent.is_set()
        assert link.unsent_bytes("background") == 0
        assert b.unsent_bytes(b.peer_id, "background") == 0

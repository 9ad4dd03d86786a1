"""A lane's reader takes turns with other tasks, and upkeep that adds up is no flood."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from client.net.carrier import PING_S, SILENT_S
from client.net.yamux_stream import KEPT_BYTES
from protocol.wire.framing import encode_frame
from protocol.wire.messages import Goodbye, Message, Ping, encode_message
from tests.support.lanes import Lane


def wire(message: Message) -> bytes:
    return b"".join(encode_frame(encode_message(message)))


async def test_other_tasks_run_while_a_reader_takes_what_lies_there() -> None:
    pieces, turns = 50, 0
    one = wire(Goodbye("1"))
    async with trio.open_nursery() as nursery:
        lane = Lane(nursery, "control")
        for _ in range(pieces):
            lane.stream.on_data(memoryview(one * (1 + KEPT_BYTES // len(one))))
        while lane.stream.buffered_bytes:
            turns += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turns >= pieces


async def test_what_came_while_nothing_was_delivered_is_no_flood(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    lane = Lane(nursery, "control", deliver_takes_s=20 * SILENT_S)
    lane.stream.on_data(memoryview(wire(Goodbye("waits"))))
    for nonce in range(int(lane.deliver_takes_s / PING_S)):
        lane.stream.on_data(memoryview(wire(Ping(nonce)) + wire(Ping(nonce, answer=True))))
        await trio.sleep(PING_S)
    await trio.sleep(PING_S)
    assert lane.refused is None
    assert lane.stream.buffered_bytes == 0

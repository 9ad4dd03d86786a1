"""Without room for a stage the node pauses, and goes on when there is room."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from client.train.machine.disk_room import AGAIN_S, LOOK_S, DiskRoom, Lack

LACK = Lack("the disk is full", Path("/disk"), 1000)


class Holds:
    """What holds the node back, by cause."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def hold(self, cause: str, reason: str, until: float | None = None) -> None:
        self.reasons[cause] = reason

    def release(self, cause: str) -> None:
        del self.reasons[cause]


@pytest.mark.parametrize("room_after_s", [20.0, float("inf")])
async def test_it_pauses_until_there_is_room_or_for_a_while(
    autojump_clock: MockClock, room_after_s: float
) -> None:
    holds = Holds()
    begun = trio.current_time()
    room = DiskRoom(holds, lambda _: 1000 if trio.current_time() - begun >= room_after_s else 999)
    room.lacks(LACK)
    assert holds.reasons["disk"].startswith("the disk is full; training goes on when there is room")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.run)
        while holds.reasons:
            await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    expected = min(room_after_s, AGAIN_S)
    assert expected <= trio.current_time() - begun <= expected + LOOK_S + 1.0

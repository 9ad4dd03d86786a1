"""Without room for a stage the node pauses, and goes on when there is room."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from client.train.machine.disk_room import AGAIN_S, LOOK_S, DiskRoom, Lack
from tests.support.train_swarm import open_swarm

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


async def test_a_state_for_which_there_is_no_room_frees_the_stage_for_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_swarm(tmp_path, steps=14, checkpoint_every=4) as swarm:
        await swarm.add(0)
        other = await swarm.add(1)
        swarm.start()
        await swarm.until(lambda: other.step(1) >= 2)
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        late, lacks = await swarm.add(), list[Lack]()
        late.held_stages.lacks_room = lacks.append
        late.assign(1)
        await swarm.until(lambda: bool(lacks))
        assert 1 not in late.held_stages.held
        assert "more are needed" in lacks[0].words
        assert lacks[0].needed_bytes > 1000
        await swarm.until_done()

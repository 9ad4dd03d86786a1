"""Without room for a stage the node pauses, and goes on when there is room."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from client.train.machine.disk_room import AGAIN_S, NoRoom
from client.train.machine.pausing import LOOK_S, Pauses


@pytest.mark.parametrize("room_after_s", [20.0, float("inf")])
async def test_it_pauses_until_there_is_room_or_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_after_s: float
) -> None:
    begun, pauses = trio.current_time(), Pauses(tmp_path, lambda said: None)

    def usage(folder: Path) -> SimpleNamespace:
        room = trio.current_time() - begun >= room_after_s
        return SimpleNamespace(free=1000 if room else 999)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    lack = NoRoom("the disk is full", Path("/disk"), 1000)
    pauses.hold("disk", str(lack), ends=lack.is_over)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.run)
        await pauses.wait_clear()
        nursery.cancel_scope.cancel()
    expected = min(room_after_s, AGAIN_S)
    assert expected <= trio.current_time() - begun <= expected + LOOK_S


async def test_a_disk_that_cannot_be_asked_is_tried(tmp_path: Path) -> None:
    assert NoRoom("full", tmp_path / "gone", 1000).is_over()

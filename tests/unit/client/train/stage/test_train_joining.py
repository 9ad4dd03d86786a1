"""A newcomer whose stage goes on while it comes loses no round, and has room for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client.store.boundaries import BoundaryStore
from client.train.stage import held_stage
from client.train.stage.stage_acquisition import StageAcquisition
from protocol.rounds.keeping_up import KEPT_STATES
from protocol.wire.messages import Admit
from tests.support.train_swarm import open_swarm


async def test_a_plan_that_comes_right_behind_the_admission_reaches_the_seat(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    admits = list[Admit]()
    admission = StageAcquisition.admission

    async def hesitates(self: StageAcquisition) -> Admit:
        admits.append(await admission(self))
        await trio.sleep(0.5)  # a round of a small stage takes less
        return admits[-1]

    monkeypatch.setattr(StageAcquisition, "admission", hesitates)
    async with open_swarm(tmp_path, stages=1, steps=40) as swarm:
        first = await swarm.add(0)
        swarm.start()
        await swarm.until(lambda: first.step(0) >= 3)
        late = await swarm.add(0)
        late.start((1,))
        await swarm.until(lambda: late.serves(0))
        assert len(admits) == 1, "it began anew"
        assert late.engine.commits[0].version == admits[0].version + 1
        await swarm.until_done()
        swarm.assert_exact()


async def test_a_newcomer_has_room_for_the_rounds_of_its_fetch(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()

    def store(*given: Any) -> BoundaryStore:
        made.append(given)
        return BoundaryStore(*given)

    monkeypatch.setattr(held_stage, "BoundaryStore", store)
    async with open_swarm(tmp_path, stages=1, steps=20) as swarm:
        first = await swarm.add(0)
        swarm.start()
        settings = first.held(0)._context.terms.settings
        monkeypatch.setattr(held_stage, "data_bytes", lambda *_: settings.boundary_disk_bytes)
        await swarm.until(lambda: first.step(0) >= 3)
        late = await swarm.add(0)
        late.start((1,))
        await swarm.until(lambda: late.serves(0))
        (_, usual), (_, much, folder) = made
        assert usual == settings.boundary_disk_bytes
        assert much == KEPT_STATES * usual
        assert folder == late.disk.parent / "snapshots"
        await swarm.until_done()

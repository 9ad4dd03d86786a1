"""The owner is told how far compiling a stage's blocks is, once for every change."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from client.compute.process import WorkerDied
from client.compute.replies import CompiledTold
from client.compute.requests import AskCompiled
from client.train.stage.held_stage import COMPILING_LOOK_S, LOADING_S, HeldStageDriver
from protocol.effects import Explain

BEGUN = CompiledTold(state="running", words="one block is compiled")


class Tells:
    """A worker that answers one after the other, and then dies."""

    def __init__(self, *answers: CompiledTold) -> None:
        self._answers: Iterator[CompiledTold] = iter(answers)
        self.asked = 0

    async def call(self, request: Any) -> tuple[CompiledTold, list[bytes]]:
        assert isinstance(request, AskCompiled)
        await trio.lowlevel.checkpoint()
        self.asked += 1
        for answer in self._answers:
            return answer, []
        raise WorkerDied(-9, ())


async def said(worker: Tells) -> list[str]:
    told: list[Explain] = []
    owner = SimpleNamespace(perform=told.append)
    driver = SimpleNamespace(spare_s=0.0)
    held = SimpleNamespace(stage=1, _context=SimpleNamespace(owner=owner), driver=driver)
    await HeldStageDriver._tell_compiled(cast(Any, held), cast(Any, worker))
    spared.append(driver.spare_s)
    return [one.words for one in told]


spared: list[float] = []
"""What tasks were given beyond their usual time, at the end."""


@pytest.mark.parametrize("end", ["on", "failed"])
async def test_every_change_is_told_once(end: Any, autojump_clock: trio.testing.MockClock) -> None:
    worker = Tells(BEGUN, BEGUN, BEGUN, CompiledTold(state=end, words="so it is"))
    began = trio.current_time()
    assert await said(worker) == ["stage 1: one block is compiled", "stage 1: so it is"]
    assert worker.asked == 4
    assert spared.pop() == 0.0
    assert trio.current_time() == began + 3 * COMPILING_LOOK_S


async def test_where_nobody_compiles_nothing_is_said() -> None:
    worker = Tells(CompiledTold(state="off", words=""))
    assert await said(worker) == []
    assert worker.asked == 1


async def test_a_worker_that_dies_meanwhile_is_no_error_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert await said(Tells(BEGUN)) == ["stage 1: one block is compiled"]
    assert spared.pop() == LOADING_S

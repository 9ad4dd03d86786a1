"""A swarm whose stages are too large for a version's hash to come with the version itself."""

from pathlib import Path

import pytest

from client.compute import replica
from client.compute.executor import Executor
from protocol.pipeline.effects import HashTask
from tests.support.train_swarm import open_swarm


async def test_steps_are_exact_and_a_newcomer_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    execute = Executor.execute

    def note(self: Executor, request: object, *others: object) -> None:
        if isinstance(request, HashTask):
            asked.append(request.step)
        execute(self, request, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(replica, "LEAF_BYTES", 0)
    monkeypatch.setattr(Executor, "execute", note)
    async with open_swarm(tmp_path, steps=6) as swarm:
        for stage in (0, 0, 1):
            await swarm.add(stage)
        late = await swarm.add(1)
        await swarm.until_done()
        await swarm.until(lambda: late.serves(1))
        swarm.assert_exact()
    assert set(asked) == set(range(1, 7))

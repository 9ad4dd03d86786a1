"""A volunteer with several devices in a 2 x 2 swarm: one seat, one ledger, nothing lost.

The group's processes are real ones, on the real clock. ``assert_exact`` holds I1, I2 and I5, and
every loss against one process (I3, I4): only the order of sums differs, within 1e-5 of a loss for
20 steps and 1e-3 later.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from client.train.workers.pool import WorkerPool
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

pytestmark = pytest.mark.trio(run=trio.run)
CHOICES: dict[str, Any] = {"microbatches": 12, "sequences": 4, "heads": 4, "groups": True}


async def two_by_two(swarm: TestSwarm, stage: int, ranks: int = 2) -> Volunteer:
    """Two volunteers per stage, one of them a group; return that one."""
    for place in range(2):
        await swarm.add(place)
    await swarm.add(1 - stage)
    grouped = await swarm.add(stage, device=",".join(f"cpu:{rank}" for rank in range(ranks)))
    await swarm.until(lambda: grouped.step(stage) >= 2 and grouped.serves(stage))
    return grouped


def pids_of(volunteer: Volunteer, stage: int) -> tuple[int, ...]:
    worker = volunteer.held(stage).worker
    return worker.pids if worker is not None else ()


async def is_one_seat_that_a_killed_rank_does_not_lose(swarm: TestSwarm, stage: int) -> None:
    grouped = await two_by_two(swarm, stage)
    worker, before = grouped.held(stage).worker, pids_of(grouped, stage)
    assert len(set(before)) == 2
    await swarm.until(lambda: grouped.counted(stage) and all(r.passes for r in worker.ranks))
    shown = grouped.shown().workers[0]
    found = [(rank.device, rank.pid) for rank in shown.ranks]
    assert found == [("cpu:0", before[0]), ("cpu:1", before[1])]
    assert shown.rss_bytes == sum(rank.rss_bytes for rank in shown.ranks) > 0
    assert grouped.held_stages.counters.worker_restarts == 0
    os.kill(before[-1], signal.SIGKILL)
    await swarm.until(lambda: grouped.held_stages.counters.worker_restarts == 1)
    await swarm.until_done()
    assert not any(map(psutil.pid_exists, before)), "a new group took its place"
    swarm.assert_exact()


@pytest.mark.slow
async def test_a_group_is_one_seat_and_a_killed_rank_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerPool, "warm", lambda pool: None)  # spares cost as much again
    async with open_swarm(tmp_path, steps=12, **CHOICES) as swarm:
        await is_one_seat_that_a_killed_rank_does_not_lose(swarm, 1)


@pytest.mark.long
async def test_a_killed_group_loses_nothing(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, steps=60, **CHOICES) as swarm:
        grouped = await two_by_two(swarm, 0, ranks=4)
        for pid in pids_of(grouped, 0):
            os.kill(pid, signal.SIGKILL)
        await swarm.until(lambda: grouped.held_stages.counters.worker_restarts == 1)
        await swarm.until_done()
        swarm.assert_exact()

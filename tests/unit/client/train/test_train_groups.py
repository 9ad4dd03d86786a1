"""A volunteer with several devices in a 2 x 2 swarm: one seat, one ledger, nothing lost.

The group's processes are real ones, on the real clock. ``assert_exact`` holds I1, I2 and I5, and
every loss against one process (I3, I4): only the order of sums differs, within 1e-5 of a loss for
20 steps and 1e-3 later.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Literal

import psutil
import pytest

from client.node.status import take_snapshot
from tests.support.cases import usual
from tests.support.train_swarm import TestSwarm, Volunteer, open_swarm

pytestmark = pytest.mark.slow

CHOICES = {"steps": 60, "microbatches": 12, "sequences": 4, "heads": 4, "processes": "groups"}


def on_ranks(count: int) -> str:
    return ",".join(f"cpu:{rank}" for rank in range(count))


Inside = Literal["replicas", "fsdp", "tp"]


async def two_by_two(
    swarm: TestSwarm, stage: int, ranks: int, inside: Inside = "replicas"
) -> Volunteer:
    """Two volunteers per stage, one of them a group; return that one."""
    for place in range(2):
        await swarm.add(place)
    await swarm.add(1 - stage)
    grouped = await swarm.add(stage, device=on_ranks(ranks), inside=inside)
    swarm.start()
    await swarm.until(lambda: grouped.step(stage) >= 2 and grouped.serves(stage))
    return grouped


def pids_of(volunteer: Volunteer, stage: int) -> tuple[int, ...]:
    worker = volunteer.held(stage).worker
    return worker.pids if worker is not None else ()


def counted(volunteer: Volunteer, stage: int) -> int:
    return sum(c.counted for c in volunteer.engine.commits if c.stage == stage)


@pytest.mark.parametrize(
    ("stage", "ranks", "inside"),
    usual(
        1,
        [
            (0, 2, "replicas"),
            (1, 4, "replicas"),
            (1, 2, "fsdp"),
            (0, 4, "fsdp"),
            (0, 2, "tp"),
            (1, 4, "tp"),
        ],
    ),
)
async def test_a_group_is_one_seat(tmp_path: Path, stage: int, ranks: int, inside: Inside) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        grouped = await two_by_two(swarm, stage, ranks, inside)
        pids = pids_of(grouped, stage)
        assert len(set(pids)) == ranks
        worker = grouped.held(stage).worker
        assert worker is not None
        await swarm.until_done()
        assert [rank.device for rank in worker.ranks] == [f"cpu:{n}" for n in range(ranks)]
        assert all(rank.passes for rank in worker.ranks), "every rank computes"
        shown = take_snapshot(grouped.engine, grouped.held_stages, 0.0, stopping=False).worker
        assert [(rank.device, rank.pid) for rank in shown.ranks] == [
            (f"cpu:{n}", pid) for n, pid in enumerate(pids)
        ]
        assert shown.rss_bytes == sum(rank.rss_bytes for rank in shown.ranks) > 0
        assert counted(grouped, stage)
        assert grouped.held_stages.counters.worker_restarts == 0
        swarm.assert_exact()


@pytest.mark.parametrize(
    ("stage", "ranks", "inside"),
    usual(
        1,
        [(1, 2, "replicas"), (0, 4, "replicas"), (0, 2, "fsdp"), (1, 4, "fsdp"), (1, 2, "tp")],
    ),
)
async def test_a_killed_rank_loses_nothing(
    tmp_path: Path, stage: int, ranks: int, inside: Inside
) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        grouped = await two_by_two(swarm, stage, ranks, inside)
        before = pids_of(grouped, stage)
        os.kill(before[-1], signal.SIGKILL)
        await swarm.until(lambda: grouped.held_stages.counters.worker_restarts == 1)
        await swarm.until_done()
        assert not any(map(psutil.pid_exists, before)), "a new group took its place"
        swarm.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("inside", ["replicas", "fsdp", "tp"])
async def test_a_killed_group_loses_nothing(tmp_path: Path, inside: Inside) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        grouped = await two_by_two(swarm, 0, 2, inside)
        for pid in pids_of(grouped, 0):
            os.kill(pid, signal.SIGKILL)
        await swarm.until(lambda: grouped.held_stages.counters.worker_restarts == 1)
        await swarm.until_done()
        swarm.assert_exact()


@pytest.mark.long
async def test_a_volunteer_that_vanishes_with_its_group_loses_nothing(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, **CHOICES) as swarm:
        grouped = await two_by_two(swarm, 1, 2)
        swarm.vanish(grouped)
        await swarm.until_done()
        swarm.assert_exact()


@pytest.mark.long
async def test_a_group_applies_updates_that_are_delayed(tmp_path: Path) -> None:
    async with open_swarm(tmp_path, delayed_update=True, **CHOICES) as swarm:
        await two_by_two(swarm, 0, 2)
        await swarm.until_done()
        swarm.assert_exact()

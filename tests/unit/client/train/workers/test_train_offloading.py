"""Where vectors are offloaded to, and when: after all else was tried, or always, or never."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from client.config import Settings
from client.errors import UserError
from client.plan.machines import OFFLOAD_WORK, RERUN_WORK, Machine, StageWork
from client.train.machine.memory_budget import MemoryBudget
from client.train.workers.offloading import (
    NOWHERE,
    Offloading,
    SlowMemory,
    advertised_bytes,
    offloading,
)
from client.train.workers.opening import check_fits, fit_stage, open_stage_request, stage_need
from protocol.manifest import Manifest, StageCost
from tests.support.protocol_examples import manifest

TWO = manifest(stages=2)
LARGE = replace(
    TWO,
    model=replace(TWO.model, layers=16, width=256, heads=4, kv_heads=4, ffn_width=1024),
    stages=tuple(replace(cost, layers=8) for cost in TWO.stages),
)
DISK = Offloading((SlowMemory("disk", 1 << 40, "/away"),))


def bytes_for(how: Manifest, **options: Any) -> int:
    """Memory in which a stage just fits."""
    return int(stage_need(how, 0, 0, **options).total_bytes / 0.85) + 1


def test_a_stage_is_offloaded_where_it_does_not_fit_otherwise() -> None:
    rerun, away = bytes_for(LARGE, reruns_blocks=True), bytes_for(LARGE, offload=True)
    assert away < rerun
    assert fit_stage(LARGE, 0, rerun, offloading=DISK).offload == "off"
    fit = fit_stage(LARGE, 0, rerun - 2, offloading=DISK)
    assert (fit.offload, fit.offload_folder, fit.reruns_blocks) == ("disk", "/away", False)
    assert fit.offloaded_bytes == stage_need(LARGE, 0, offload=True).offloaded_bytes
    least = bytes_for(LARGE, offload=True, reruns_blocks=True)
    tight = fit_stage(LARGE, 0, least, offloading=DISK)
    assert (tight.offload, tight.reruns_blocks) == ("disk", True)
    with pytest.raises(UserError, match=r"MiB of memory and .* MiB of disk"):
        fit_stage(LARGE, 0, least - 2, offloading=DISK)
    with pytest.raises(UserError, match="of memory, "):
        fit_stage(LARGE, 0, rerun - 2)


def test_always_means_where_it_would_fit_as_well() -> None:
    assert fit_stage(LARGE, 0, 1 << 40, offloading=DISK).offload == "off"
    always = Offloading(DISK.places, always=True)
    assert fit_stage(LARGE, 0, 1 << 40, offloading=always).offload == "disk"
    with pytest.raises(UserError):
        fit_stage(LARGE, 0, 1 << 40, offloading=Offloading((), always=True))


def test_the_fastest_place_with_room_is_taken() -> None:
    size = stage_need(LARGE, 0, offload=True).offloaded_bytes
    disk = DISK.places[0]
    host = SlowMemory("memory", size)
    rerun = bytes_for(LARGE, reruns_blocks=True)
    fit = fit_stage(LARGE, 0, rerun - 2, offloading=Offloading((host, disk)))
    assert fit.offload == "memory"
    small = SlowMemory("memory", size - 1)
    assert fit_stage(LARGE, 0, rerun - 2, offloading=Offloading((small, disk))).offload == "disk"
    with pytest.raises(UserError):
        fit_stage(LARGE, 0, rerun - 2, offloading=Offloading((small,)))


async def test_the_budget_and_the_request_know_of_it() -> None:
    budget = MemoryBudget(LARGE, lambda: bytes_for(LARGE, reruns_blocks=True) - 2, lambda: DISK)
    assert budget.has_room()
    fit = await budget.take(0)
    request = open_stage_request(LARGE, "ab" * 32, 0, Settings(), fit, "", 1)
    assert (request.offload, request.offload_folder) == ("disk", "/away")
    assert budget.free_bytes >= 0


def test_what_is_advertised_lets_the_matching_give_such_a_stage() -> None:
    costs = tuple(
        replace(cost, memory_bytes=float(stage_need(LARGE, stage).total_bytes))
        for stage, cost in enumerate(LARGE.stages)
    )
    swarm = replace(LARGE, stages=costs)
    usable = bytes_for(swarm, offload=True)
    assert usable < costs[0].memory_bytes
    fits = check_fits(swarm, usable, DISK)
    assert fits[0]
    assert advertised_bytes(swarm, usable, fits) >= costs[0].memory_bytes
    assert advertised_bytes(swarm, usable, [False, False]) == usable
    with pytest.raises(UserError):
        check_fits(swarm, usable)


class Disk(NamedTuple):
    free: int


def test_the_places_of_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(1000))
    folder = tmp_path / "not" / "made"
    on_cpu = offloading(Settings(), folder, has_host=False)
    assert on_cpu == Offloading((SlowMemory("disk", 900, str(folder)),))
    on_gpu = offloading(Settings(offload="on"), folder, has_host=True)
    assert [place.kind for place in on_gpu.places] == ["memory", "disk"]
    assert on_gpu.always
    assert offloading(Settings(offload="off"), folder, has_host=True) == NOWHERE


def test_a_disk_that_cannot_be_read_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> Disk:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", broken)
    found = offloading(Settings(), Path(os.sep) / "x", has_host=False)
    assert found.place_for(1) is None


def test_a_plan_reckons_with_a_disk() -> None:
    cost = StageCost(1, 1e9, 1, 0.0, 0.0, 100.0)
    work = StageWork(cost, 50.0, 200.0, 650.0, offload_bytes=17.0, away_bytes=300.0)
    plain, with_disk, small_disk, tiny = (
        Machine("m", 1e9, memory, 1e9, 1e9, disk_bytes=disk)
        for memory, disk in ((20.0, 0.0), (20.0, 300.0), (20.0, 299.0), (19.0, 300.0))
    )
    assert [work.fits(each) for each in (plain, with_disk, small_disk, tiny)] == [0, 1, 0, 0]
    assert work.rate(with_disk) == pytest.approx(1 / (RERUN_WORK * OFFLOAD_WORK))
    assert (work.rate(plain), work.taken_bytes(with_disk)) == (0.0, 17.0)
    ample = Machine("m", 1e9, 1000.0, 1e9, 1e9, disk_bytes=300.0)
    assert (work.rate(ample), work.taken_bytes(ample)) == (1.0, 650.0)

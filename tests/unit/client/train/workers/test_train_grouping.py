"""How several devices share a stage is chosen by memory, and bad wishes are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.machine.memory_budget import MemoryBudget
from client.train.workers.devices import ONE, Devices, devices_now
from client.train.workers.opening import (
    check_fits,
    fit_stage,
    open_stage_request,
    stage_need,
)
from model_zoo.specs.architecture import Lora
from model_zoo.specs.local_rounds import LocalRounds
from protocol.manifest import Manifest
from tests.support.protocol_examples import manifest

RANKS = 2


TWO = manifest(stages=2)
LARGE = replace(
    TWO,
    model=replace(TWO.model, layers=16, width=256, heads=4, kv_heads=4, ffn_width=1024),
    stages=tuple(replace(cost, layers=8) for cost in TWO.stages),
    sequences_per_microbatch=4,
)


def bytes_of(swarm: Manifest, **how: object) -> int:
    need = stage_need(swarm, 0, 0, reruns_blocks=True, **how)  # type: ignore[arg-type]
    return int(need.total_bytes / 0.85) + 1


def test_a_stage_is_cut_where_it_does_not_fit_a_device() -> None:
    swarm = LARGE
    whole, part = bytes_of(swarm), bytes_of(swarm, ranks=RANKS)
    assert part < whole
    both = Devices(RANKS)
    alike = fit_stage(swarm, 0, 100 * whole, devices=both)
    assert (alike.ranks, alike.at_once(RANKS)) == (1, RANKS)
    fit = fit_stage(swarm, 0, part, devices=both)
    assert (fit.ranks, fit.at_once(RANKS)) == (RANKS, 1)
    assert fit.size_bytes <= part
    with pytest.raises(UserError, match="stage 0 needs"):
        fit_stage(swarm, 0, part // 2, devices=both)
    with pytest.raises(UserError, match="stage 0 needs"):
        fit_stage(swarm, 0, part, devices=ONE)
    assert all(check_fits(swarm, whole, devices=both))


def test_devices_do_not_share_a_local_round() -> None:
    local = replace(LARGE, local_rounds=LocalRounds(4))
    assert all(check_fits(local, 1 << 40, devices=ONE))
    with pytest.raises(UserError, match="2 devices cannot share one") as caught:
        check_fits(local, 1 << 40, devices=Devices(2))
    assert "a volunteer for each device" in caught.value.next_step


def test_what_the_first_rank_keeps_lies_with_the_host_of_a_gpu() -> None:
    swarm = LARGE
    shards = bytes_of(swarm, ranks=RANKS, host=True)
    kept = stage_need(swarm, 0, ranks=RANKS, host=True).offloaded_bytes
    assert shards < bytes_of(swarm, ranks=RANKS)
    assert fit_stage(swarm, 0, shards, devices=Devices(RANKS, kept)).ranks == RANKS
    with pytest.raises(UserError, match="of the host's memory"):
        fit_stage(swarm, 0, shards, devices=Devices(RANKS, kept - 1))


def test_what_would_help_is_said() -> None:
    def said(devices: Devices, swarm: Manifest = LARGE) -> str:
        with pytest.raises(UserError) as caught:
            fit_stage(swarm, 0, 1000, devices=devices)
        assert caught.value.exit_code is ExitCode.CONFIG
        return f"{caught.value}; {caught.value.next_step}"

    assert "add graphics cards (--devices)" in said(ONE)
    assert "MiB of memory of each device" in said(Devices(2, 10**12))
    uncut = replace(LARGE, sequences_per_microbatch=3)
    assert "devices cannot cut it: a microbatch has 3 sequences" in said(Devices(4), uncut)


def test_more_ranks_need_less_each() -> None:
    needs = [bytes_of(LARGE, ranks=count) for count in (1, 2, 4)]
    assert needs == sorted(needs, reverse=True)
    assert needs[2] < 0.6 * needs[1]


@pytest.mark.parametrize(
    ("ranks", "changes", "words"),
    [
        (1, {}, "there is one device"),
        (4, {"sequences_per_microbatch": 3}, "a microbatch has 3 sequences"),
        (
            2,
            {"model": replace(LARGE.model, lora=Lora(4, 8.0, ("attn.c_attn",)))},
            "beside adapters",
        ),
        (2, {}, ""),
    ],
)
def test_why_a_stage_is_not_cut(ranks: int, changes: dict[str, object], words: str) -> None:
    found = Devices(ranks).why_uncut(replace(LARGE, **changes))
    assert words in found
    assert bool(words) is bool(found)


async def test_the_budget_and_the_request_know_of_it() -> None:
    swarm = LARGE
    part = bytes_of(swarm, ranks=RANKS)
    budget = MemoryBudget(swarm, lambda: part, devices=lambda: Devices(RANKS))
    fit = await budget.take(0)
    assert budget.free_bytes == part - fit.size_bytes
    request = open_stage_request(swarm, "ab" * 32, 0, Settings(device="0,1"), fit, "", threads=2)
    assert (request.ranks, request.graphs_kept) == (RANKS, fit.graphs)


def test_the_settings_name_the_devices() -> None:
    assert devices_now(Settings(device="cpu:0,cpu:1"), has_host=False) == Devices(2, 0, "auto")
    assert devices_now(Settings(device="0,1"), has_host=True).host_bytes > 0

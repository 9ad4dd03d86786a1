"""How several devices share a stage is chosen by memory, and bad wishes are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from client.compute.requests import Inside
from client.config import Settings
from client.errors import ExitCode, UserError
from client.train.machine.memory_budget import MemoryBudget
from client.train.workers.grouping import ALONE, Grouping, check_inside, grouping
from client.train.workers.opening import (
    check_fits,
    fit_stage,
    open_stage_request,
    stage_need,
)
from model_zoo.specs.architecture import Experts
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
    both = Grouping(RANKS)
    assert fit_stage(swarm, 0, 100 * whole, grouping=both).inside == "replicas"
    fit = fit_stage(swarm, 0, part, grouping=both)
    assert (fit.inside, fit.at_once(RANKS)) == ("fsdp", 1)
    assert fit.size_bytes <= part
    with pytest.raises(UserError, match="stage 0 needs"):
        fit_stage(swarm, 0, part // 2, grouping=both)
    with pytest.raises(UserError, match="stage 0 needs"):
        fit_stage(swarm, 0, part, grouping=ALONE)
    assert all(check_fits(swarm, whole, grouping=both))


def test_the_owner_may_choose() -> None:
    swarm = LARGE
    whole = bytes_of(swarm)
    cut = Grouping(RANKS, "fsdp")
    assert fit_stage(swarm, 0, 100 * whole, grouping=cut).inside == "fsdp"
    with pytest.raises(UserError, match="needs"):
        fit_stage(swarm, 0, whole // 2, grouping=Grouping(RANKS, "replicas"))


def test_what_the_first_rank_keeps_lies_with_the_host_of_a_gpu() -> None:
    swarm = LARGE
    shards = bytes_of(swarm, ranks=RANKS, host=True)
    kept = stage_need(swarm, 0, ranks=RANKS, host=True).offloaded_bytes
    assert shards < bytes_of(swarm, ranks=RANKS)
    assert fit_stage(swarm, 0, shards, grouping=Grouping(RANKS, "fsdp", kept)).inside == "fsdp"
    with pytest.raises(UserError, match="of the host's memory"):
        fit_stage(swarm, 0, shards, grouping=Grouping(RANKS, "fsdp", kept - 1))


def said(available_bytes: int, group: Grouping, swarm: Manifest = LARGE) -> str:
    with pytest.raises(UserError) as caught:
        fit_stage(swarm, 0, available_bytes, grouping=group)
    return f"{caught.value}; {caught.value.next_step}"


def test_what_would_help_is_said() -> None:
    plenty = 10**12
    four = bytes_of(LARGE, ranks=4, host=True)
    assert "4 such devices hold it together" in said(four, Grouping(1, host_bytes=plenty))
    assert "4 such devices" in said(four, Grouping(4, "replicas", plenty))
    assert "4 such devices" in said(four, Grouping(2, "fsdp", plenty)), "two are not enough"
    assert "such devices" not in said(four, Grouping(1)), "a processor has one memory"
    assert "such devices" not in said(1000, Grouping(1, host_bytes=plenty)), "nor are sixteen"
    assert "MiB of memory of each device" in said(1000, Grouping(2, "fsdp", plenty))
    kept = stage_need(LARGE, 0, ranks=4, host=True).offloaded_bytes
    short = said(four, Grouping(4, "fsdp", kept - (5 << 20)))
    assert "the host's memory lacks 5 MiB" in short
    uncut = replace(LARGE, delayed_update=True)
    assert "devices cannot cut it: updates are delayed" in said(four, Grouping(4), uncut)


def test_more_ranks_need_less_each() -> None:
    needs = [bytes_of(LARGE, ranks=count) for count in (1, 2, 4)]
    assert needs == sorted(needs, reverse=True)
    assert needs[2] < 0.6 * needs[1]


@pytest.mark.parametrize(
    ("inside", "ranks", "changes", "words"),
    [
        ("fsdp", 4, {"sequences_per_microbatch": 3}, "a microbatch has 3 sequences"),
        ("fsdp", 2, {"delayed_update": True}, "delayed by one step"),
        ("tp", 3, {}, "its 4 heads cannot be divided by 3"),
        ("tp", 8, {}, "its 4 heads cannot be divided by 8"),
        (
            "tp",
            4,
            {"model": replace(LARGE.model, architecture="llama", kv_heads=2)},
            "its 2 key/value heads",
        ),
        ("tp", 4, {"model": replace(LARGE.model, ffn_width=1022)}, "its 1022 inner columns"),
        (
            "tp",
            4,
            {"model": replace(LARGE.model, architecture="llama", experts=Experts(6, 2))},
            "its 6 experts cannot be divided by 4",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_if_asked_for(
    inside: Inside, ranks: int, changes: dict[str, object], words: str
) -> None:
    swarm = replace(LARGE, **changes)
    plenty = 10**12
    assert fit_stage(swarm, 0, plenty, grouping=Grouping(ranks)).inside == "replicas"
    with pytest.raises(UserError, match=words) as caught:
        fit_stage(swarm, 0, plenty, grouping=Grouping(ranks, inside))
    assert caught.value.exit_code is ExitCode.CONFIG


def test_few_sequences_are_cut_by_heads() -> None:
    swarm = replace(LARGE, sequences_per_microbatch=1)
    assert Grouping(RANKS).ways(swarm, 0) == ["replicas", "tp"]
    assert Grouping(RANKS).ways(LARGE, 0) == ["replicas", "fsdp"]
    assert Grouping(3).ways(swarm, 0) == ["replicas"], "four heads"
    part = bytes_of(swarm, ranks=RANKS, inside="tp")
    assert part < bytes_of(swarm)
    assert fit_stage(swarm, 0, part, grouping=Grouping(RANKS)).inside == "tp"


async def test_the_budget_and_the_request_know_of_it() -> None:
    swarm = LARGE
    part = bytes_of(swarm, ranks=RANKS)
    budget = MemoryBudget(swarm, lambda: part, grouping=lambda: Grouping(RANKS))
    fit = await budget.take(0)
    assert budget.free_bytes == part - fit.size_bytes
    request = open_stage_request(swarm, "ab" * 32, 0, Settings(device="0,1"), fit, "", threads=2)
    assert (request.inside, request.graphs_kept) == ("fsdp", fit.graphs)


def test_the_settings_say_how() -> None:
    found = grouping(Settings(device="cpu:0,cpu:1", inside="fsdp"), has_host=False)
    assert found == Grouping(2, "fsdp", 0)
    assert grouping(Settings(device="0,1"), has_host=True).host_bytes > 0
    check_inside(Settings(device="0,1", inside="fsdp"))
    check_inside(Settings(device="cpu"))
    with pytest.raises(UserError, match="needs several devices"):
        check_inside(Settings(device="cpu", inside="fsdp"))

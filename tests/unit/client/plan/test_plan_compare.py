"""The plan's placement of machines, and its preference among several plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.plan import compare
from client.plan.compare import ONE_LAYER, Terms, alternatives, best_of
from client.plan.machines import Cut, Machine, StageWork
from client.plan.placing import place
from protocol.limits import MAX_MICROBATCHES_PER_STEP, MAX_REPLICAS_IN_ROUND
from protocol.manifest import StageCost

FAST = 1e12
"""A link that limits nothing."""
LAYERS = 8
GB = 10**9


def machine(speed: float = 1e9, memory: float = 100 * GB, link: float = FAST) -> Machine:
    return Machine(f"{speed:g}", speed, memory, link, link)


def stage(flops: float = 1e9, memory: float = 0.0) -> StageWork:
    return StageWork(StageCost(1, flops, 1, 0.0, 0.0, memory))


def levels(placed: Sequence[Sequence[Machine]], stages: Sequence[StageWork]) -> list[float]:
    pairs = zip(placed, stages, strict=True)
    return [sum(work.rate(member) for member in members) for members, work in pairs]


def works(stages: int, sequences: int) -> list[StageWork] | None:
    """A model of eight equal layers, 1 GFLOP and 1 MB of boundary per sequence."""
    if LAYERS % stages:
        return None
    return [
        StageWork(
            StageCost(
                layers=LAYERS // stages,
                flops=1e9 * sequences * LAYERS / stages,
                parameters=LAYERS // stages * 10**6,
                uplink_bytes=1e6 * sequences * ((s > 0) + (s < stages - 1)),
                downlink_bytes=1e6 * sequences * ((s > 0) + (s < stages - 1)),
                memory_bytes=LAYERS / stages * GB,
            )
        )
        for s in range(stages)
    ]


def test_the_dearer_stage_gets_more() -> None:
    stages = [stage(1e9), stage(3e9)]
    placed = place([machine()] * 4, stages, 1)
    assert placed is not None
    assert [len(members) for members in placed] == [1, 3]


def test_large_machines_are_kept_for_the_stages_that_need_them() -> None:
    large, small = machine(memory=20 * GB), machine(speed=9e9, memory=2 * GB)
    placed = place([large, small], [stage(memory=GB), stage(memory=10 * GB)], 1)
    assert placed == [[small], [large]]
    assert place([small, small], [stage(memory=GB), stage(memory=10 * GB)], 1) is None


def test_redundancy_comes_before_throughput() -> None:
    machines = [machine(1e9)] * 3 + [machine(10e9)]
    placed = place(machines, [stage(), stage()], 2)
    assert placed is not None
    assert [len(members) for members in placed] == [2, 2]
    alone = place(machines, [stage(), stage()], 1)
    assert alone is not None
    assert min(levels(alone, [stage(), stage()])) == 3.0


def test_no_more_than_a_round_takes() -> None:
    placed = place([machine()] * 100, [stage(), stage()], 2)
    assert placed is not None
    assert [len(members) for members in placed] == [MAX_REPLICAS_IN_ROUND] * 2


def test_one_fast_machine_is_exchanged_for_two_slow_ones() -> None:
    stages = [stage(0.86e9), stage(2.13e9)]
    machines = [machine(speed) for speed in (13e9, 16e9, 16e9, 45e9)]
    placed = place(machines, stages, 1)
    assert placed is not None
    assert min(levels(placed, stages)) == pytest.approx((45 + 16) / 2.13)


@settings(max_examples=60, deadline=None)
@given(
    speeds=st.lists(st.floats(1e8, 1e11), min_size=2, max_size=7),
    costs=st.lists(st.floats(1e8, 1e10), min_size=2, max_size=3),
)
def test_near_the_best_of_all_placements(speeds: list[float], costs: list[float]) -> None:
    stages = [stage(cost) for cost in costs]
    machines = [machine(speed) for speed in speeds]
    placed = place(machines, stages, 1)
    if len(machines) < len(stages):
        assert placed is None
        return
    assert placed is not None
    assert sum(map(len, placed)) == len(machines)
    best = 0.0
    for seats in product(range(len(stages)), repeat=len(machines)):
        reached = [0.0] * len(stages)
        for which, each in zip(seats, machines, strict=True):
            reached[which] += stages[which].rate(each)
        best = max(best, min(reached))
    assert min(levels(placed, stages)) >= 0.75 * best


def plans(machines: list[Machine], redundancy: int = 1) -> list[compare.Alternative]:
    terms = Terms(64, 128, 1.0, redundancy)
    return alternatives(machines, works, terms, (1, 2, 3, 4, 8), (1, 4))


def test_every_pair_that_can_be_is_compared_at_equal_tokens_per_step() -> None:
    found = plans([machine()] * 4)
    assert [(each.stages, each.sequences) for each in found] == list(product((1, 2, 4, 8), (1, 4)))
    assert {each.microbatches * each.sequences for each in found} == {64}
    eight = [each for each in found if each.stages == 8]
    assert all("8 stages need as many machines" in each.why for each in eight)


def test_one_stage_is_best_where_it_fits_and_averaging_is_cheap() -> None:
    best = best_of(plans([machine()] * 4), 1)
    assert best is not None
    assert (best.stages, best.replicas) == (1, 4)


def test_memory_forces_a_cut_and_says_so() -> None:
    found = plans([machine(memory=4 * GB)] * 4)
    assert "memory: a stage needs 8.00 GB" in found[0].why
    best = best_of(found, 1)
    assert best is not None
    assert (best.stages, best.replicas) == (2, 2)
    assert f"{ONE_LAYER} needs 1.00 GB" in plans([machine(memory=GB / 2)] * 8)[-1].why


def test_redundancy_decides_before_speed() -> None:
    machines = [machine(memory=3 * GB)] * 4  # only four stages fit
    best = best_of(plans(machines, 2), 2)
    assert best is not None
    assert (best.stages, best.replicas) == (4, 1)
    slow = [replace(each, upload_bytes_per_s=1e6) for each in [machine(memory=4 * GB)] * 4]
    best = best_of(plans(slow, 2), 2)
    assert best is not None
    assert best.replicas == 2


def test_who_holds_the_averaging_up_is_left_out() -> None:
    best = best_of(plans([machine()] * 4 + [machine(link=1e3)]), 1)
    assert best is not None
    assert best.stages == 1
    assert best.replicas == 4


def test_nothing_that_works_is_no_plan() -> None:
    assert best_of(plans([machine(memory=GB / 2)]), 1) is None


def test_a_stage_that_costs_nothing_is_no_plan() -> None:
    def free(stages: int, sequences: int) -> list[StageWork]:
        return [stage(0.0)] * stages

    found = alternatives([machine()] * 4, free, Terms(64, 128, 1.0, 1), (1, 2), (1,))
    assert ["cost nothing" in each.why for each in found] == [True, True]
    assert best_of(found, 1) is None


def test_no_step_has_more_microbatches_than_a_manifest_may_say() -> None:
    def plan(microbatches: int) -> compare.Alternative:
        terms = Terms(8 * microbatches, 128, 1.0, 1)
        (found,) = alternatives([machine()], works, terms, (1,), (8,))
        return found

    assert plan(MAX_MICROBATCHES_PER_STEP).prediction is not None
    over = plan(MAX_MICROBATCHES_PER_STEP + 1)
    assert over.prediction is None
    assert over.why == f"more than {MAX_MICROBATCHES_PER_STEP} microbatches a step"


@pytest.mark.parametrize(
    ("layers", "machines", "counts"),
    [(12, 100, [1, 2, 4, 8, 12]), (4, 3, [1, 2, 3]), (1, 5, [1]), (1000, 1000, 256)],
)
def test_stage_counts(layers: int, machines: int, counts: list[int] | int) -> None:
    found = compare.stage_counts(layers, machines)
    assert found == counts or found[-1] == counts


def test_microbatch_sizes_divide_the_step() -> None:
    assert compare.microbatch_sizes(4, 64) == [1, 2, 4, 8, 16, 32]
    assert compare.microbatch_sizes(3, 12) == [1, 2, 3, 4]
    assert compare.microbatch_sizes(8, 8 * MAX_MICROBATCHES_PER_STEP) == [8, 16, 32, 64]


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(2, 12),
    speed=st.floats(1e8, 1e12),
    link=st.floats(1e4, 1e9),
    times=st.floats(1.0, 50.0),
)
def test_better_lines_for_all_never_make_the_best_plan_slower(
    count: int, speed: float, link: float, times: float
) -> None:
    def best(link: float) -> float:
        found = best_of(plans([machine(speed, link=link)] * count), 1)
        assert found is not None
        assert found.prediction is not None
        return found.prediction.tokens_per_s

    assert best(link * times) >= best(link) * compare.NEARLY * (1 - 1e-9)


CUTS = (
    Cut(
        devices=4,
        fixed_bytes=2 * GB,
        graph_bytes=GB,
        rerun_bytes=2.5 * GB,
        host_bytes=9 * GB,
        share_bytes=3 * GB,
        work=1.5,
    ),
    Cut(devices=2, why_not="too few sequences"),
)
CUTTABLE = replace(stage(memory=8 * GB), cuts=CUTS, usual_bytes=9 * GB)


def several(devices: int, memory: float, **changes: object) -> Machine:
    return replace(machine(memory=memory), devices=devices, **changes)  # type: ignore[arg-type]


def test_devices_cut_what_does_not_fit_one_of_them() -> None:
    whole = several(4, 8 * GB)
    assert CUTTABLE.fits(whole)
    assert CUTTABLE.cut_by(whole) is None
    assert CUTTABLE.taken_bytes(whole) == 9 * GB
    with_host = several(4, 7 * GB, host_bytes=9 * GB)
    assert CUTTABLE.fits(with_host)
    assert CUTTABLE.cut_by(with_host) is CUTS[0]
    assert CUTTABLE.taken_bytes(with_host) == 2 * GB + 3 * GB, "three graphs"
    assert CUTTABLE.graphs(with_host) == 2, "beside the one in use"
    assert CUTTABLE.rate(with_host) == pytest.approx(CUTTABLE.rate(whole) / 1.5)
    tight = several(4, 3 * GB, host_bytes=9 * GB)
    assert CUTTABLE.taken_bytes(tight) == 2.5 * GB, "its blocks are run again"
    assert CUTTABLE.rate(tight) < CUTTABLE.rate(with_host)
    assert not CUTTABLE.fits(several(4, 7 * GB, host_bytes=8 * GB))
    assert CUTTABLE.fits(several(4, 7 * GB)), "each has a share of what a host would have"
    assert not CUTTABLE.fits(several(4, 6 * GB))


def test_what_cannot_be_cut_has_to_fit_one_device() -> None:
    assert not CUTTABLE.fits(several(2, 7 * GB))
    assert CUTTABLE.why_uncut(several(2, 7 * GB)) == "too few sequences"
    assert CUTTABLE.fits(several(2, 8 * GB))
    assert CUTTABLE.why_uncut(several(2, 8 * GB)) == "", "it need not be cut"
    assert not CUTTABLE.fits(several(3, 7 * GB)), "nobody has said how"


def test_each_device_with_the_whole_stage_keeps_graphs() -> None:
    work = replace(stage(), fixed_bytes=GB, graph_bytes=GB)
    assert work.graphs(several(3, 5 * GB)) == 3 * work.graphs(machine(memory=5 * GB))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (several(4, GB, host_bytes=9 * GB), "over 4 devices it needs 2.94 GB of each and 9"),
        (several(2, 2 * GB), "2 devices cannot cut it: too few sequences"),
        (several(3, 2 * GB), "the largest device lends 2.00 GB"),
        (machine(memory=2 * GB), "the largest machine lends 2.00 GB"),
    ],
)
def test_what_devices_lack_is_said(group: Machine, words: str) -> None:
    found = alternatives([group], lambda count, size: [CUTTABLE], Terms(64, 128, 1.0, 1), [1], [1])
    assert [each.prediction for each in found] == [None]
    assert words in found[0].why

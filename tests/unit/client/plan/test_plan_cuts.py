"""How a plan deals machines out, and its preference among several cuts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.plan import cuts
from client.plan.cuts import ONE_LAYER, Alternative, alternative, best_of, place
from client.plan.model import Load, Machine, Run, rate
from protocol.limits import MAX_REPLICAS_IN_ROUND
from protocol.manifest import StageCost

FAST = 1e12
"""A link that limits nothing."""
LAYERS = 8
GB = 10**9


def machine(speed: float = 1e9, memory: float = 100 * GB, link: float = FAST) -> Machine:
    return Machine(speed, memory, link, link)


def stage(flops: float = 1e9, memory: float = 0.0) -> Load:
    return Load(StageCost(1, flops, 1, 0.0, 0.0, memory))


def levels(placed: Sequence[Sequence[Machine]], stages: Sequence[Load]) -> list[float]:
    pairs = zip(placed, stages, strict=True)
    return [sum(rate(load, member) for member in members) for members, load in pairs]


def loads(stages: int) -> tuple[Load, ...]:
    """A model of eight equal layers of 1 GFLOP, and 1 MB of boundary."""
    return tuple(
        Load(
            StageCost(
                layers=LAYERS // stages,
                flops=1e9 * LAYERS / stages,
                parameters=LAYERS // stages * 10**6,
                uplink_bytes=1e6 * ((s > 0) + (s < stages - 1)),
                downlink_bytes=1e6 * ((s > 0) + (s < stages - 1)),
                memory_bytes=LAYERS / stages * GB,
            )
        )
        for s in range(stages)
    )


def test_large_machines_are_kept_for_the_stages_that_need_them() -> None:
    large, small = machine(memory=20 * GB), machine(speed=9e9, memory=2 * GB)
    placed = place([large, small], [stage(memory=GB), stage(memory=10 * GB)], 1)
    assert placed == [[small], [large]]
    assert place([small, small], [stage(memory=GB), stage(memory=10 * GB)], 1) is None


def test_redundancy_comes_before_throughput() -> None:
    machines = [machine(1e9)] * 3 + [machine(10e9)]
    placed = place(machines, [stage(), stage()], 2)
    assert [len(members) for members in placed] == [2, 2]
    alone = place(machines, [stage(), stage()], 1)
    assert min(levels(alone, [stage(), stage()])) == 3.0


def test_no_more_than_a_round_takes() -> None:
    placed = place([machine()] * 100, [stage(), stage()], 2)
    assert [len(members) for members in placed] == [MAX_REPLICAS_IN_ROUND] * 2


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, MAX_REPLICAS_IN_ROUND),
    costs=st.lists(st.floats(1e8, 1e10), min_size=2, max_size=6),
)
def test_equal_machines_leave_no_stage_behind(count: int, costs: list[float]) -> None:
    """A stage has what it would have of machines that could be split, less one a stage."""
    stages = [stage(cost) for cost in costs]
    placed = place([machine()] * count, stages, 1)
    if count < len(stages):
        assert placed is None
        return
    assert sum(map(len, placed)) == count
    shared = 1e9 * (count - len(costs)) / sum(costs)
    assert min(levels(placed, stages)) >= shared * (1 - 1e-9)


RUN = Run((), 64, 128, averaging_bytes_per_parameter=1.0)


def plans(machines: list[Machine], redundancy: int = 1) -> list[Alternative]:
    runs = [replace(RUN, stages=loads(count)) for count in (1, 2, 4, 8)]
    return [alternative(machines, run, redundancy) for run in runs]


def test_one_stage_is_best_where_it_fits_and_averaging_is_cheap() -> None:
    best = best_of(plans([machine()] * 4), 1)
    assert (len(best.run.stages), best.replicas) == (1, 4)


def test_memory_forces_a_cut_and_says_so() -> None:
    found = plans([machine(memory=4 * GB)] * 4)
    assert "memory: a stage needs 8.00 GB" in found[0].why
    assert "8 stages need as many machines" in found[-1].why
    best = best_of(found, 1)
    assert (len(best.run.stages), best.replicas) == (2, 2)
    assert best_of(plans([machine(memory=GB / 2)]), 1) is None
    assert f"{ONE_LAYER} needs 1.00 GB" in plans([machine(memory=GB / 2)] * 8)[-1].why


def test_redundancy_decides_before_speed() -> None:
    machines = [machine(memory=3 * GB)] * 4  # only four stages fit
    best = best_of(plans(machines, 2), 2)
    assert (len(best.run.stages), best.replicas) == (4, 1)
    slow = [replace(each, upload_bytes_per_s=1e6) for each in [machine(memory=4 * GB)] * 4]
    best = best_of(plans(slow, 2), 2)
    assert best.replicas == 2


@pytest.mark.parametrize(
    ("layers", "machines", "counts"),
    [(12, 100, [1, 2, 4, 8, 12]), (4, 3, [1, 2, 3]), (1, 5, [1]), (1000, 1000, 256)],
)
def test_stage_counts(layers: int, machines: int, counts: list[int] | int) -> None:
    found = cuts.stage_counts(layers, machines)
    assert found == counts or found[-1] == counts

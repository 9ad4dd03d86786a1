"""The cut is optimal, the FLOP formula adds up, measured costs have the right shape."""

import itertools
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.cutting import measure_costs
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import slices, whole_slice


def gpt(layers: int) -> ModelSpec:
    return ModelSpec("gpt", layers, 32, 4, 4, 64, context=16)


def dearest(costs: list[float], layers_per_stage: tuple[int, ...]) -> float:
    totals, start = [], 1
    for layers in layers_per_stage:
        totals.append(sum(costs[start : start + layers]))
        start += layers
    totals[0] += costs[0]
    totals[-1] += costs[-1]
    return max(totals)


def all_cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    borders = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]
    return [tuple(b - a for a, b in pairwise(x)) for x in borders]


@given(st.lists(st.integers(0, 50), min_size=3, max_size=10), st.data())
def test_no_cut_has_a_cheaper_dearest_stage(whole_costs: list[int], data: st.DataObject) -> None:
    costs = [float(cost) for cost in whole_costs]
    layers = len(costs) - 2
    stages = data.draw(st.integers(1, layers))
    chosen = cut(gpt(layers), costs, stages)
    assert len(chosen) == stages
    assert sum(chosen) == layers
    assert min(chosen) >= 1
    assert dearest(costs, chosen) == min(dearest(costs, c) for c in all_cuts(layers, stages))


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([0, 1, 1, 1, 1, 0], 2, (2, 2)),
        ([0, 1, 1, 1, 1, 2], 2, (3, 1)),
        ([3, 1, 1, 1, 1, 0], 2, (1, 3)),
        ([0, 1, 1, 1, 1, 1, 0], 5, (1, 1, 1, 1, 1)),
        ([0, 9, 1, 1, 1, 1, 0], 3, (1, 2, 2)),
        ([0, 6, 8, 1, 4, 3, 9, 0], 3, (1, 3, 2)),  # least squares would be (2, 3, 1)
    ],
)
def test_known_cuts(costs: list[float], stages: int, expected: tuple[int, ...]) -> None:
    assert cut(gpt(len(costs) - 2), costs, stages) == expected


@pytest.mark.parametrize(
    ("costs", "stages", "message"),
    [
        (None, 0, "1 to 4 stages"),
        (None, 5, "1 to 4 stages"),
        ([1.0] * 5, 2, "need 6 costs"),
        ([1.0] * 5 + [-1.0], 2, "costs >= 0"),
        ([1.0] * 5 + [float("nan")], 2, "costs >= 0"),
    ],
)
def test_refuses(costs: list[float] | None, stages: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cut(gpt(4), costs, stages)


def test_a_large_head_takes_layers_off_the_last_stage() -> None:
    spec = ModelSpec("gpt", 8, 32, 4, 4, 64, context=16, vocab=2000)
    first, last = cut(spec, None, 2)
    assert last < first


def test_flops_add_up_over_the_stages(spec: ModelSpec) -> None:
    parts = slices((1, 2, 1))
    assert sum(flops_per_token(spec, p) for p in parts) == flops_per_token(spec, whole_slice(spec))


def test_flops_of_a_known_model() -> None:
    spec = ModelSpec("gpt", 1, 10, 1, 1, 40, context=8, vocab=100)
    matrices = 4 * 10 * 10 + 2 * 10 * 40 + 10 * 100
    assert flops_per_token(spec, whole_slice(spec)) == 3 * (2 * matrices + 2 * 8 * 10)


def test_measured_costs_fit_the_cut(spec: ModelSpec) -> None:
    costs = measure_costs(spec, microbatch=1, repeats=1)
    assert len(costs) == spec.layers + 2
    assert min(costs) > 0
    assert sum(cut(spec, costs, 2)) == spec.layers


@pytest.mark.parametrize(("tick_s", "passes"), [(0.1, 1 + 3), (5.0, 1)])
def test_a_part_that_takes_long_is_run_once(
    tick_s: float, passes: int, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = itertools.count()
    monkeypatch.setattr("model_zoo.cutting.process_time", lambda: next(reads) * tick_s)
    costs = measure_costs(spec, microbatch=1, repeats=3)
    assert costs == pytest.approx((tick_s,) * (spec.layers + 2))
    assert next(reads) == 3 * 2 * passes

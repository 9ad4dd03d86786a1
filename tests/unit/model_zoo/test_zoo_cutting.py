"""The cut is optimal, the FLOP formula adds up."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.partition import cut, linear_partition
from model_zoo.specs.slices import slices, whole_slice


def gpt(layers: int) -> ModelSpec:
    return ModelSpec("gpt", layers, 32, 4, 4, 64, context=16)


def dearest(costs: list[float], layers_per_stage: tuple[int, ...]) -> float:
    totals, start = [], 0
    for layers in layers_per_stage:
        totals.append(sum(costs[start : start + layers]))
        start += layers
    return max(totals)


def all_cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    borders = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]
    return [tuple(b - a for a, b in pairwise(x)) for x in borders]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_cheaper_dearest_stage(whole_costs: list[int], data: st.DataObject) -> None:
    costs = [float(cost) for cost in whole_costs]
    layers = len(costs)
    stages = data.draw(st.integers(1, layers))
    chosen = linear_partition(costs, stages)
    assert len(chosen) == stages
    assert sum(chosen) == layers
    assert min(chosen) >= 1
    assert dearest(costs, chosen) == min(dearest(costs, c) for c in all_cuts(layers, stages))


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([1, 1, 1, 1], 2, (2, 2)),
        ([1, 1, 1, 3], 2, (3, 1)),
        ([4, 1, 1, 1], 2, (1, 3)),
        ([1, 1, 1, 1, 1], 5, (1, 1, 1, 1, 1)),
        ([9, 1, 1, 1, 1], 3, (1, 2, 2)),
        ([6, 8, 1, 4, 3, 9], 3, (1, 3, 2)),  # least squares would be (2, 3, 1)
    ],
)
def test_known_cuts(costs: list[float], stages: int, expected: tuple[int, ...]) -> None:
    assert linear_partition(costs, stages) == expected


@pytest.mark.parametrize("stages", [0, 5])
def test_refuses_what_leaves_a_stage_without_a_layer(stages: int) -> None:
    with pytest.raises(ValueError, match="1 to 4 stages"):
        cut(gpt(4), stages)


def test_a_large_head_takes_layers_off_the_last_stage() -> None:
    spec = ModelSpec("gpt", 8, 32, 4, 4, 64, context=16, vocab=2000)
    first, last = cut(spec, 2)
    assert last < first


def test_flops_add_up_over_the_stages(spec: ModelSpec) -> None:
    parts = slices((1, 2, 1))
    assert sum(flops_per_token(spec, p) for p in parts) == flops_per_token(spec, whole_slice(spec))


def test_flops_of_a_known_model() -> None:
    spec = ModelSpec("gpt", 1, 10, 1, 1, 40, context=8, vocab=100)
    matrices = 4 * 10 * 10 + 2 * 10 * 40 + 10 * 100
    assert flops_per_token(spec, whole_slice(spec)) == 3 * (2 * matrices + 2 * 8 * 10)

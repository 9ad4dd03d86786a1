"""The cut is optimal."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.partition import cut, spread


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


@given(
    st.tuples(*[st.integers(0, 50)] * 3),
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
)
def test_no_cut_has_a_cheaper_dearest_stage(
    costs: tuple[int, int, int], size: tuple[int, int]
) -> None:
    (embedding, layer, head), (layers, stages) = costs, size
    chosen = spread(embedding, layer, head, layers, stages)
    assert len(chosen) == stages
    assert sum(chosen) == layers
    assert min(chosen) >= 1
    parts = [float(cost) for cost in (embedding, *[layer] * layers, head)]
    assert dearest(parts, chosen) == min(dearest(parts, c) for c in all_cuts(layers, stages))


@pytest.mark.parametrize("stages", [0, 5])
def test_refuses(stages: int) -> None:
    with pytest.raises(ValueError, match="1 to 4 stages"):
        cut(gpt(4), stages)


def test_a_large_head_takes_layers_off_the_last_stage() -> None:
    spec = ModelSpec("gpt", 8, 32, 4, 4, 64, context=16, vocab=2000)
    first, last = cut(spec, 2)
    assert last < first

"""Levels after dual homing: the split of time is the best one, and says what it reaches."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from protocol.matching.sharing import MICRO, StageLevel, effective_levels, lowest_level

rates = st.integers(0, 10 * MICRO)


@st.composite
def pipelines(draw: st.DrawFn, stages: st.SearchStrategy[int]) -> list[StageLevel]:
    count = draw(stages)
    return [
        StageLevel(draw(rates), *((draw(rates), draw(rates)) if s < count - 1 else (0, 0)))
        for s in range(count)
    ]


def best_of_grid(stages: list[StageLevel], steps: int) -> int:
    """Try every split of every pool in ``steps``."""
    best = 0
    for shares in itertools.product(range(steps + 1), repeat=len(stages) - 1):
        levels = [stage.alone for stage in stages]
        for s, share in enumerate(shares):
            levels[s] += stages[s].pool_here * share // steps
            levels[s + 1] += stages[s].pool_next * (steps - share) // steps
        best = max(best, min(levels))
    return best


@given(pipelines(st.integers(1, 4)))
def test_no_split_of_the_pools_does_better(stages: list[StageLevel]) -> None:
    assert lowest_level(stages) >= best_of_grid(stages, 12) * (1 - 2e-4) - 2


@given(pipelines(st.integers(1, 12)))
def test_the_levels_reach_the_lowest_level_with_the_time_there_is(stages: list[StageLevel]) -> None:
    levels, lowest = effective_levels(stages), lowest_level(stages)
    assert min(levels) >= lowest * (1 - 1e-4) - len(stages)
    for s, stage in enumerate(stages):
        before = stages[s - 1].pool_next if s else 0
        assert stage.alone <= levels[s] <= stage.alone + stage.pool_here + before

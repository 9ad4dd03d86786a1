"""Levels after dual homing: how far volunteers that hold two adjacent stages even them out.

Each pair of neighbouring stages shares a pool of volunteers, and a pool splits its time freely
between the two. The highest lowest level is a flow problem on a path. The greedy solution from left
to right is exact: a stage takes from the left pool what the previous stage left over, then from the
right pool only what it still needs. Pure functions of integers.
"""

from collections.abc import Sequence

import msgspec

MICRO = 1_000_000


class StageLevel(msgspec.Struct, frozen=True):
    """The rates that serve one stage, in micro-microbatches per second."""

    alone: int
    """Summed rate of the volunteers that hold only this stage."""
    pool_here: int = 0
    """Summed rate, at this stage, of the volunteers that hold it and the next one."""
    pool_next: int = 0
    """Summed rate of the same volunteers at the next stage."""


def lowest_level(stages: Sequence[StageLevel]) -> int:
    """Return the highest level that every stage can reach at once, to one part in 10,000."""
    before = [0, *(stage.pool_next for stage in stages)]
    most = [s.alone + s.pool_here + left for s, left in zip(stages, before, strict=False)]
    low, high = 0, min(most, default=0)
    while high - low > high // 10_000:
        middle = (low + high + 1) // 2
        if _needs(stages, middle) is None:
            high = middle - 1
        else:
            low = middle
    return low


def effective_levels(stages: Sequence[StageLevel]) -> tuple[int, ...]:
    """Return every stage's level when the pools split their time as ``lowest_level`` needs.

    A pool's time that the lowest level does not need is split evenly between its two stages.
    """
    lowest = lowest_level(stages)
    needs = _needs(stages, lowest) or []
    spare = _spare(stages, lowest, needs)
    levels = [stage.alone for stage in stages]
    for s, stage in enumerate(stages):
        here = needs[s] + spare[s] // 2
        levels[s] += stage.pool_here * here // MICRO
        if s + 1 < len(stages):
            levels[s + 1] += stage.pool_next * (MICRO - here) // MICRO
    return tuple(levels)


def _needs(stages: Sequence[StageLevel], level: int) -> list[int] | None:
    """Return the share (ppm) of each pool that its first stage needs; None: infeasible."""
    needs: list[int] = []
    inflow = 0
    for stage in stages:
        missing = level - stage.alone - inflow
        if missing > stage.pool_here:
            return None
        need = -(-missing * MICRO // stage.pool_here) if missing > 0 else 0
        inflow = stage.pool_next * (MICRO - need) // MICRO
        needs.append(need)
    return needs


def _spare(stages: Sequence[StageLevel], level: int, needs: Sequence[int]) -> list[int]:
    """Return the share of every pool that neither of its stages needs for the level."""
    spare = []
    for s, stage in enumerate(stages):
        if s + 1 == len(stages) or not stage.pool_next:
            spare.append(MICRO - needs[s])
            continue
        after = stages[s + 1]
        own = after.alone + after.pool_here * needs[s + 1] // MICRO
        there = min(MICRO - needs[s], -(-max(0, level - own) * MICRO // stage.pool_next))
        spare.append(MICRO - needs[s] - there)
    return spare

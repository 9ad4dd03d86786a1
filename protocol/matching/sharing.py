"""Levels after dual homing: how far volunteers that hold two adjacent stages can even them out.

Each pair of neighbouring stages shares a pool of volunteers; a pool splits its time freely between
the two. Which lowest level can be reached is a flow problem on a path, and the greedy answer from
left to right is exact: a stage takes from the pool on its left what the stage before left over,
then from the pool on its right only what it still needs. Pure functions of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class StageLevel:
    """What serves one stage, in micro-microbatches per second."""

    alone: int
    """Summed rate of those that hold this stage only."""
    pool_here: int = 0
    """Rate at this stage of those that hold it and the next one."""
    pool_next: int = 0
    """Rate of the same at the next stage."""


def lowest_level(stages: Sequence[StageLevel]) -> int:
    """Return the highest level that every stage can reach at once, to one part in 10,000."""
    low, high = 0, _bound(stages)
    while high - low > high // 10_000:
        middle = (low + high + 1) // 2
        if _needs(stages, middle) is None:
            high = middle - 1
        else:
            low = middle
    return low


def effective_levels(stages: Sequence[StageLevel]) -> tuple[int, ...]:
    """Return every stage's level when the pools split their time as ``lowest_level`` needs.

    Time that the lowest stages cannot use is shared half and half by its two stages.
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


def _bound(stages: Sequence[StageLevel]) -> int:
    """Return what no stage can exceed: the least of all with both pools to itself."""
    before = [0, *(stage.pool_next for stage in stages)]
    return min(
        (s.alone + s.pool_here + extra for s, extra in zip(stages, before, strict=False)), default=0
    )


def _needs(stages: Sequence[StageLevel], level: int) -> list[int] | None:
    """Return the share of each pool that its first stage needs, in ppm; None: out of reach."""
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

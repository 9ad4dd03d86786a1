"""What serves every stage, as the membership view shows it: replicas, and levels after dual homing.

Pure functions and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from protocol.ids import Stage
from protocol.matching.sharing import StageLevel, effective_levels


class Standing(NamedTuple):
    """A stage's supply; tuples compare coverage and redundancy before throughput."""

    covered: int
    """Replicas, counted up to r."""
    level: int

    @classmethod
    def of(cls, replicas: int, level: int, r: int) -> Standing:
        """Return the standing of a stage with ``replicas`` of ``r`` and a summed rate ``level``."""
        return cls(min(replicas, r), level)

    def exceeds(self, low: Standing, percent: int = 100) -> bool:
        """Tell whether this is better than ``low``, the level by more than ``percent`` of it."""
        return (self.covered, self.level * 100) > (low.covered, low.level * percent)


@dataclass(frozen=True)
class Supply:
    """What serves every stage."""

    copies: tuple[int, ...]
    """Replicas, with either seat."""
    stages: tuple[StageLevel, ...]
    r: int

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """After dual homing."""
        return effective_levels(self.stages)

    def standing(self, stage: Stage) -> Standing:
        """Return the standing of a stage."""
        return Standing.of(self.copies[stage], self.levels[stage], self.r)

    def neediest(self, count: int) -> list[Stage]:
        """Return the stages with the lowest standings, the lowest first."""
        stages = map(Stage, range(len(self.copies)))
        return sorted(stages, key=lambda s: (self.standing(s), s))[:count]

    def after(self, held: Sequence[Stage], rates: Sequence[int], *, sign: int = 1) -> Supply:
        """Return the supply with one member in addition, or (-1) without it. It holds its home, and
        the stage beside it if it has one; ``rates`` are what it can do at every stage."""
        copies, stages = list(self.copies), list(self.stages)
        for stage in held:
            copies[stage] += sign
        lower = min(held)
        pool = stages[lower]
        if len(held) == 1:
            stages[lower] = replace(pool, alone=max(0, pool.alone + sign * rates[lower]))
        else:
            stages[lower] = replace(
                pool,
                pool_here=max(0, pool.pool_here + sign * rates[lower]),
                pool_next=max(0, pool.pool_next + sign * rates[lower + 1]),
            )
        return Supply(tuple(copies), tuple(stages), self.r)

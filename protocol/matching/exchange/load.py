"""What serves one stage, and what a pipeline of such stages yields.

A ``Load`` counts each volunteer at its home. Those that also hold a neighbouring stage are named
twice more, with their rate here and there, so that the levels after dual homing follow from the
loads of all stages alone. Pure functions of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from protocol.ids import PeerId, Stage
from protocol.matching import sharing
from protocol.matching.bodies import Level, Replicas
from protocol.matching.population import Population
from protocol.matching.sharing import StageLevel


class Load(NamedTuple):
    """Rates of the volunteers at home in one stage, in micro-microbatches per second."""

    level: Level
    up: Level = 0
    """Of these, those that also hold the next stage ..."""
    up_there: Level = 0
    """... and their rate there."""
    down: Level = 0
    """Of these, those that also hold the stage before ..."""
    down_there: Level = 0
    """... and their rate there."""

    def plus(self, other: Load) -> Load:
        """Return the load of both."""
        return Load(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Load) -> Load:
        """Return the load without the other's."""
        return Load(*(max(0, mine - its) for mine, its in zip(self, other, strict=True)))


class Basis(NamedTuple):
    """A stage before anybody moves."""

    load: Load
    replicas: Replicas
    """Volunteers at home there, those that still fetch it included, and second seats."""


NOTHING = Load(0)


def total(loads: Iterable[Load]) -> Load:
    """Return the load of many."""
    sums = [sum(column) for column in zip(*loads, strict=True)]
    return Load(*sums) if sums else NOTHING


def of_member(population: Population, peer: PeerId, home: Stage) -> Load:
    """Return what a member brings to its home and, through its second seat, to a neighbour."""
    rate = population.rate(peer, home)
    member = population.members.get(peer)
    second = member.second if member else None
    if second is None:
        return Load(rate)
    there = population.rate(peer, second)
    return Load(rate, up=rate, up_there=there) if second > home else Load(rate, 0, 0, rate, there)


def lowest(loads: Sequence[Load]) -> int:
    """Return the level that the whole pipeline reaches, after dual homing."""
    return _lowest(tuple(loads))


def levels(loads: Sequence[Load]) -> tuple[int, ...]:
    """Return every stage's level after dual homing."""
    if not _shared(loads):
        return tuple(load.level for load in loads)
    return sharing.effective_levels(_stage_levels(loads))


@lru_cache(maxsize=256)
def _lowest(loads: tuple[Load, ...]) -> int:
    if not _shared(loads):
        return min((load.level for load in loads), default=0)
    return sharing.lowest_level(_stage_levels(loads))


def _shared(loads: Sequence[Load]) -> bool:
    return any(load.up or load.down for load in loads)


def _stage_levels(loads: Sequence[Load]) -> list[StageLevel]:
    """Put those that hold two neighbouring stages into one pool, wherever their home is."""
    found = []
    for load, after in zip(loads, [*loads[1:], NOTHING], strict=True):
        alone = max(0, load.level - load.up - load.down)
        found.append(StageLevel(alone, load.up + after.down_there, load.up_there + after.down))
    return found

"""Loads: the rates that serve each stage, and the throughput of the whole pipeline.

A ``Load`` counts each volunteer at its home. It also has the rates, at both stages, of volunteers
that hold a neighbouring stage too, so that the levels after dual homing follow from the loads of
all stages. Pure functions of integers.
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
    """The part of ``level`` by volunteers that also hold the next stage."""
    up_there: Level = 0
    """Their rate at the next stage."""
    down: Level = 0
    """The part of ``level`` by volunteers that also hold the previous stage."""
    down_there: Level = 0
    """Their rate at the previous stage."""

    def plus(self, other: Load) -> Load:
        """Return the sum of both loads."""
        return Load(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Load) -> Load:
        """Return the load minus the other, at least 0."""
        return Load(*(max(0, mine - its) for mine, its in zip(self, other, strict=True)))


class Basis(NamedTuple):
    """A stage before any move."""

    load: Load
    replicas: Replicas
    """Volunteers at home there, including those that still fetch it, and second seats."""


NOTHING = Load(0)


def total(loads: Iterable[Load]) -> Load:
    """Return the sum of loads."""
    sums = [sum(column) for column in zip(*loads, strict=True)]
    return Load(*sums) if sums else NOTHING


def of_member(population: Population, peer: PeerId, home: Stage) -> Load:
    """Return the load of ``peer`` at its ``home`` and, by its second seat, at a neighbour.

    Args:
        population: the view with its rates.
        peer: the member.
        home: the stage of its first seat.
    """
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
    """Pool the volunteers that hold two neighbouring stages, whichever is their home."""
    found = []
    for load, after in zip(loads, [*loads[1:], NOTHING], strict=True):
        alone = max(0, load.level - load.up - load.down)
        found.append(StageLevel(alone, load.up + after.down_there, load.up_there + after.down))
    return found

"""Deferred acceptance in one process: the reference that the distributed protocol must equal, and
the pairs that it must not leave. Pure functions.

Gale & Shapley 1962, volunteers proposing, with prefix cover as the choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching import preferences
from protocol.matching.choice import Choice, Proposer, prefix_cover
from protocol.matching.pool import Limits
from protocol.matching.population import Population


@dataclass(frozen=True, slots=True)
class Instance:
    """One matching problem."""

    preferences: Mapping[PeerId, tuple[Stage, ...]]
    """Acceptable stages of every volunteer, best first."""
    offers: Mapping[tuple[PeerId, Stage], Proposer]
    """The volunteer's rate and score at a stage."""
    limits: Mapping[Stage, Limits]

    def choose(self, stage: Stage, peers: set[PeerId]) -> Choice[Proposer]:
        """Return the stage's choice among some proposers."""
        limits = self.limits[stage]
        proposers = (self.offers[peer, stage] for peer in peers)
        return prefix_cover(proposers, limits.quota, limits.floor)


def blocking_pairs(
    instance: Instance, assignment: Mapping[PeerId, Stage | None]
) -> list[tuple[PeerId, Stage]]:
    """Return the volunteers and stages that would keep them and that they prefer to theirs:
    without any the matching is stable."""
    staff = {
        stage: {peer for peer, at in assignment.items() if at == stage} for stage in instance.limits
    }
    return [
        (peer, stage)
        for peer in instance.preferences
        for stage in _preferred(instance, peer, assignment.get(peer))
        if _would_keep(instance, stage, staff[stage], peer)
    ]


def _preferred(instance: Instance, peer: PeerId, now_at: Stage | None) -> tuple[Stage, ...]:
    wishes = instance.preferences[peer]
    return wishes[: wishes.index(now_at)] if now_at in wishes else wishes


def _would_keep(instance: Instance, stage: Stage, staff: set[PeerId], peer: PeerId) -> bool:
    kept = instance.choose(stage, staff | {peer}).kept
    return any(proposer.peer == peer for proposer in kept)


def deferred_acceptance(instance: Instance) -> dict[PeerId, Stage | None]:
    """Return the stable matching that is best for the volunteers; at most n S proposals."""
    held: dict[Stage, set[PeerId]] = {stage: set() for stage in instance.limits}
    next_wish = dict.fromkeys(instance.preferences, 0)
    free = deque(instance.preferences)
    while free:
        peer = free.popleft()
        if next_wish[peer] >= len(instance.preferences[peer]):
            continue
        stage = instance.preferences[peer][next_wish[peer]]
        next_wish[peer] += 1
        choice = instance.choose(stage, held[stage] | {peer})
        held[stage] = {proposer.peer for proposer in choice.kept}
        free.extend(proposer.peer for proposer in choice.let_go)
    placed: dict[PeerId, Stage | None] = dict.fromkeys(instance.preferences)
    placed.update({peer: stage for stage, peers in held.items() for peer in peers})
    return placed


def cold_start(population: Population, limits: Mapping[Stage, Limits]) -> Instance:
    """Return the problem of a population in which no stage is served yet."""
    stages = [Stage(s) for s in population.stages]
    wishes = {
        peer: {s: _wish(population, peer, s) for s in stages if population.rate(peer, s)}
        for peer in population.members
    }
    offers = {
        (peer, s): Proposer(
            peer, population.rate(peer, s), population.score(peer, s, population.fair_level)
        )
        for peer in population.members
        for s in stages
    }
    ranked = {
        peer: tuple(sorted(wish, key=lambda s: (wish[s], -s), reverse=True))
        for peer, wish in wishes.items()
    }
    return Instance(ranked, offers, limits)


def _wish(population: Population, peer: PeerId, stage: Stage) -> preferences.Wish:
    return population.wish(
        peer,
        stage,
        level=0,
        fair=population.fair_level,
        replicas=0,
        r=population.redundancy,
    )

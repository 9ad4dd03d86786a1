"""The protocol with loss, duplicates, reordering and steward crashes finds what one place finds.

The last stage of these worlds fits nowhere. So nothing is ever locked, every place stays tentative,
and the outcome of the distributed deferred acceptance can be compared with the synchronous one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import pytest

from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching import preferences, settling
from protocol.matching.choice import Choice, Proposer, prefix_cover
from protocol.matching.pool import HeldPlace, Limits
from protocol.matching.population import Population
from tests.support.cases import usual
from tests.support.matching_examples import costs, manifest, member, peer
from tests.support.matching_world import CALM, STORMY, Weather, World


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
    """Return the stable matching that is best for the volunteers; at most n S proposals.

    Gale & Shapley 1962, volunteers proposing, with prefix cover as the choice.
    """
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


SEEDS = usual(1, (range(15), range(15, 300)))
QUICK_MEMBERSHIP = replace(STORMY, gossip_s=(0.02, 0.15))


def unstartable(stages: int) -> Manifest:
    """Return a manifest of unequal stages whose last one nobody has the memory for."""
    *others, last = costs([1e9 * (1 + s % 3) for s in range(stages)])
    too_big = msgspec.structs.replace(last, memory_bytes=1e15)
    return msgspec.structs.replace(manifest(stages), stages=(*others, too_big))


def build(seed: int, weather: Weather) -> World:
    """Return a world of 4 to 9 unequal workers and three peers that can only be stewards."""
    dice = random.Random(seed)
    world = World(unstartable(dice.randint(3, 5)), seed, weather)
    for number in range(dice.randint(4, 9)):
        flops, link = dice.lognormvariate(0, 0.8) * 1e9, dice.lognormvariate(0, 0.8) * 100
        world.join(
            member(
                seed * 100 + number,
                flops,
                uplink_bytes_per_s=link,
                downlink_bytes_per_s=link * 1e6,
                measured_s=1000.0,
            )
        )
    for number in range(50, 53):
        world.join(member(seed * 100 + number, memory_bytes=0.0))
    return world


def one_place(population: Population, limits: dict[Stage, Limits] | None = None) -> Instance:
    """Return the problem as everybody saw it, with lambda for quota unless limits are given."""
    fair = Limits(population.fair_level, population.redundancy)
    return cold_start(population, limits or {Stage(s): fair for s in population.stages})


def found(world: World) -> dict[PeerId, Stage | None]:
    """Return the places that the volunteers believe they have."""
    return {who: machine.tentative_stage for who, machine in world.machines.items()}


def final_limits(world: World) -> dict[Stage, Limits]:
    """Return the limits that the stewards ended with."""
    return {
        stage: steward.pool.limits
        for machine in world.machines.values()
        for stage, steward in machine.stewardships.items()
    }


def help_nobody(*_: object) -> list[HeldPlace]:
    """Deferred acceptance alone."""
    return []


@pytest.mark.parametrize("weather", [CALM, QUICK_MEMBERSHIP], ids=["calm", "stormy"])
@pytest.mark.parametrize("seeds", SEEDS)
def test_places_equal_those_of_the_synchronous_run(
    seeds: range, weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "help_needy", help_nobody)
    for seed in seeds:
        world = build(seed, weather)
        world.run(30)
        assert found(world) == deferred_acceptance(one_place(world.population())), f"seed {seed}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_steward_crashes_change_nothing(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "help_needy", help_nobody)
    for seed in seeds:
        world = build(seed, QUICK_MEMBERSHIP)
        world.run(0.5)
        wanted = deferred_acceptance(one_place(world.population()))
        for number in range(50, 52):
            world.crash_after(world.random.uniform(0.5, 4.0), peer(seed * 100 + number))
        world.run(60)
        workers = {who: stage for who, stage in wanted.items() if who in world.machines}
        assert found(world) == workers, f"seed {seed}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_no_blocking_pair_at_quiescence(seeds: range) -> None:
    for seed in seeds:
        world = build(seed, QUICK_MEMBERSHIP)
        world.run(30)
        instance = one_place(world.population(), final_limits(world))
        assert blocking_pairs(instance, found(world)) == [], f"seed {seed}"

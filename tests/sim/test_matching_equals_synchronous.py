"""The protocol with loss, duplicates, reordering and steward crashes finds what one place finds.

The last stage of these worlds fits nowhere. So nothing is ever locked, every place stays tentative,
and the outcome of the distributed deferred acceptance can be compared with the synchronous one.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching import settling
from protocol.matching.pool import HeldPlace, Limits
from protocol.matching.population import Population
from tests.support.cases import usual
from tests.support.matching_world import CALM, STORMY, Weather, World, manifest, member, peer
from tests.support.synchronous_matching import (
    Instance,
    blocking_pairs,
    cold_start,
    deferred_acceptance,
)

SEEDS = usual(1, (range(15), range(15, 300)))
QUICK_MEMBERSHIP = replace(STORMY, gossip_s=(0.02, 0.15))


def unstartable(stages: int) -> Manifest:
    """Return a manifest of unequal stages whose last one nobody has the memory for."""
    run = manifest([1e9 * (1 + s % 3) for s in range(stages)])
    too_big = msgspec.structs.replace(run.stages[-1], memory_bytes=1e15)
    return msgspec.structs.replace(run, stages=(*run.stages[:-1], too_big))


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


def view(world: World) -> Population:
    return Population(
        world.members.values(), world.manifest.stages, world.manifest.policy.redundancy
    )


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
        assert found(world) == deferred_acceptance(one_place(view(world))), f"seed {seed}"


@pytest.mark.parametrize("seeds", SEEDS)
def test_steward_crashes_change_nothing(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "help_needy", help_nobody)
    for seed in seeds:
        world = build(seed, QUICK_MEMBERSHIP)
        world.run(0.5)
        wanted = deferred_acceptance(one_place(view(world)))
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
        instance = one_place(view(world), final_limits(world))
        assert blocking_pairs(instance, found(world)) == [], f"seed {seed}"

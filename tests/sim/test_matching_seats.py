"""Second seats and single moves in whole swarms: the stages held besides the home, and the
moves."""

import random
from collections import Counter

import pytest
from msgspec import structs

from protocol.ids import PeerId, Stage
from protocol.manifest import Manifest
from protocol.matching.effects import Assign
from protocol.matching.timing import MEASURED_S
from tests.support.matching_examples import manifest, member
from tests.support.matching_world import CALM, STORMY, Design, Weather, World, swarm

ALONE = Design(dual_homing=False)


def dual(world: World) -> dict[PeerId, Stage]:
    held = {who: m.seats.second.advertised for who, m in world.machines.items()}
    return {who: stage for who, stage in held.items() if stage is not None}


def throughput(world: World) -> int:
    return min(world.population().supply.levels)


def test_dual_homing_lifts_the_lowest_stage() -> None:
    gains = []
    for seed in range(4):
        dice = random.Random(seed)
        speeds = [dice.lognormvariate(0, 0.8) for _ in range(16)]
        alone = swarm(speeds, 4, seed, CALM, ALONE, within_s=2.0)
        shared = swarm(speeds, 4, seed, within_s=2.0)
        alone.run(400)
        shared.run(400)
        assert throughput(shared) >= throughput(alone) * 0.97, f"seed {seed}"
        gains.append(throughput(shared) / throughput(alone))
    assert sum(gains) / len(gains) > 1.05


def test_a_stage_that_lacks_replicas_gets_a_second_seat_within_seconds() -> None:
    """Five volunteers on two stages; when one stage keeps a single replica, a neighbour helps."""
    for seed in range(10):
        world = swarm([1.0] * 5, 2, seed, CALM, Design(moves=False), within_s=2.0)
        world.run(120)
        homes = Counter(m.seats.home.advertised for m in world.machines.values())
        thin = min(homes, key=lambda stage: homes[stage])
        for who in [w for w, m in world.machines.items() if m.seats.home.advertised == thin][1:]:
            world.crash(who)
        before = len(world.log)
        world.run(20)
        copies = sum(thin in m.seats.stages for m in world.machines.values())
        assert copies >= 2, f"seed {seed}: {[str(e) for _, _, e in world.log[before:]]}"


def dear_to_average(parameters: int) -> Manifest:
    """Return a manifest of two stages; one of 43M parameters takes 17 s of a household's line, in
    steps of 8 s."""
    usual = manifest(2)
    stages = tuple(structs.replace(cost, parameters=parameters) for cost in usual.stages)
    return structs.replace(usual, stages=stages)


@pytest.mark.parametrize(("parameters", "held"), [(10_000, 2), (43_000_000, 0)])
def test_a_second_stage_is_held_only_where_it_is_worth_its_averaging(
    parameters: int, held: int
) -> None:
    for seed in range(4):
        world = World(dear_to_average(parameters), seed, STORMY)
        for number in range(2):
            line = {"uplink_bytes_per_s": 2.5e6, "downlink_bytes_per_s": 2.5e6}
            world.join(member(seed * 100 + number, measured_s=1000.0, **line), at=float(number))
        world.run(400)
        assert {m.seats.home.advertised for m in world.machines.values()} == {0, 1}, f"seed {seed}"
        assert len(dual(world)) == held, f"seed {seed}"
        world.crash(next(iter(world.machines)))
        world.run(60)
        (left,) = world.machines.values()
        assert left.seats.stages == {0, 1}, f"seed {seed}"  # who is alone holds all


def uneven(seed: int, weather: Weather) -> World:
    """Return a settled swarm of equals on two stages after some of one stage crashed."""
    world = swarm([1.0] * 8, 2, seed, weather, ALONE, within_s=2.0)
    world.run(60)
    unlucky = [
        who for who, m in world.machines.items() if m.seats.home.advertised == Stage(seed % 2)
    ][:3]
    for who in unlucky:
        world.crash(who)
    return world


def test_nobody_moves_twice_within_five_minutes_and_no_stage_falls_below_r() -> None:
    for seed in range(5):
        world = uneven(seed, STORMY)
        began = len(world.log)
        world.run(700)
        moved = [(at, w) for at, w, e in world.log[began:] if isinstance(e, Assign)]
        last: dict[PeerId, float] = {}
        for at, who in moved:
            assert at - last.get(who, -1e9) >= MEASURED_S, f"seed {seed}"
            last[who] = at
        assert min(world.spread()) >= 2, f"seed {seed}"

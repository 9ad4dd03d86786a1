"""Whole swarms of equal machines: even coverage, however they arrive and whatever is lost."""

import pytest

from protocol.ids import Stage
from protocol.matching.effects import Assign
from protocol.matching.timing import LOOK_S
from tests.support.cases import usual
from tests.support.matching_examples import manifest, member
from tests.support.matching_world import CALM, STORMY, Design, Weather, World, swarm

STAYING = Design(moves=False)
"""Incumbents keep their home: what is tested is something else."""


def settle(world: World, count: int) -> float:
    """Run until everybody serves; return the seconds that took."""
    return world.run(90, until=lambda: len(world.machines) == count and world.placed())


SHAPES = [(1, 1), (2, 2), (4, 2), (8, 4), (7, 3), (6, 4)]


@pytest.mark.parametrize("weather", [CALM, STORMY], ids=["calm", "stormy"])
@pytest.mark.parametrize(("count", "stages"), SHAPES)
@pytest.mark.parametrize("seeds", usual(1, (range(6), range(6, 40))))
def test_equal_machines_spread_evenly(
    count: int, stages: int, weather: Weather, seeds: range
) -> None:
    for seed in seeds:
        within_s = (0.0, 0.5, 5.0)[seed % 3]
        world = swarm([1.0] * count, stages, seed, weather, within_s=within_s, measured_s=0.0)
        took_s = settle(world, count)
        spread = world.spread()
        assert sum(spread) == count, f"seed {seed}: {spread}"
        assert max(spread) - min(spread) <= 1, f"seed {seed}: {spread}"
        assert took_s < within_s + 30, f"seed {seed}"


def test_too_few_volunteers_wait_and_say_for_what() -> None:
    world = swarm([1.0], 2, 0, measured_s=0.0)
    world.run(30)
    assert world.spread() == [0, 0]
    assert any(world.said(f"waiting for 1 more volunteer: stage {s} has none") for s in (0, 1))
    assert not any(isinstance(effect, Assign) for _, _, effect in world.log)
    world.join(member(50))
    settle(world, 2)
    assert world.spread() == [1, 1]


def test_who_stays_alone_takes_both_of_two_stages_after_a_while() -> None:
    """So who has trained alone goes on after a restart; whoever comes later takes one of them."""
    for seed in range(4):
        world = swarm([1.0], 2, seed, STORMY, measured_s=0.0)
        world.run(LOOK_S + 15)
        (alone,) = world.machines.values()
        assert alone.seats.stages == {0, 1}, f"seed {seed}"
        assert world.said("every stage is covered"), f"seed {seed}"
        assert alone.waits_for == ""
        world.join(member(seed * 100 + 50))
        settle(world, 2)
        assert world.spread() == [1, 1], f"seed {seed}"


def test_who_has_memory_for_one_stage_waits_alone() -> None:
    world = World(manifest(2), 0, CALM)
    world.join(member(0, memory_bytes=1.5e9))
    world.run(3 * LOOK_S)
    (alone,) = world.machines.values()
    assert alone.seats.stages == frozenset()
    assert alone.waits_for.startswith("waiting for 1 more volunteer")


def test_nobody_fetches_before_every_stage_is_covered() -> None:
    for seed in range(20):
        world = swarm([1.0] * 4, 4, seed, STORMY, within_s=2.0, measured_s=0.0)
        settle(world, 4)
        first = min(at for at, _, effect in world.log if isinstance(effect, Assign))
        held = {who for at, who, e in world.log if at <= first and "held by" in str(e)}
        assert len(held) >= 3, f"seed {seed}"
        assert world.said("every stage is covered; replicas by stage: 1, 1, 1, 1"), f"seed {seed}"


def test_a_machine_that_fits_one_stage_only_gets_it() -> None:
    """The flexible one came first and has to make room, in either order."""
    for seed in range(20):
        world = World(manifest(2), seed, STORMY)
        small = member(seed * 100, ineligible=frozenset({Stage(seed % 2)}))
        world.join(member(seed * 100 + 1), at=0.0)
        world.join(small, at=3.0)
        settle(world, 2)
        assert world.matching()[small.peer] == Stage(1 - seed % 2), f"seed {seed}"
        assert world.spread() == [1, 1], f"seed {seed}"


def test_a_crashed_replica_is_replaced_by_a_newcomer_and_nobody_else_moves() -> None:
    for seed in range(20):
        world = swarm([1.0] * 4, 2, seed, STORMY, measured_s=0.0)
        settle(world, 4)
        victim = world.random.choice(sorted(world.machines))
        world.crash(victim)
        world.run(8)
        survivors = world.matching()
        assert sorted(world.spread()) == [1, 2], f"seed {seed}"
        world.join(member(seed * 100 + 50))
        settle(world, 4)
        assert world.spread() == [2, 2], f"seed {seed}"
        assert survivors.items() <= world.matching().items(), f"seed {seed}"


def test_a_serving_peer_outlives_every_steward() -> None:
    """Stewards crash one after the other; serving members keep serving, and the next stewards know
    them."""
    for seed in range(10):
        world = swarm([1.0] * 8, 2, seed, STORMY, STAYING, measured_s=0.0)
        settle(world, 8)
        for _ in range(3):
            stewards = [who for who, m in world.machines.items() if m.stewardships.held]
            world.crash(world.random.choice(sorted(stewards)))
            before = world.matching()
            world.run(20)
            assert before.items() <= world.matching().items(), f"seed {seed}"
        posted = {
            stage: steward.posting.locked_replicas
            for machine in world.machines.values()
            for stage, steward in machine.stewardships.held.items()
        }
        assert [posted[Stage(s)] for s in range(2)] == world.spread(), f"seed {seed}"

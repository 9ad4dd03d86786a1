"""Replicas of a stage are spread over unrelated members, where there are any."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from protocol.ids import PeerId
from tests.support.matching_examples import WALL_S, manifest, member
from tests.support.matching_world import CALM, Design, World

SEEDS = 24
EQUAL = 1e9
STAYING = Design(moves=False)
"""Incumbents keep their home."""


def played(shape: tuple[int, int], pairs: int, seed: int, *, known: bool, within_s: float) -> int:
    """Return ``alone`` of a settled world of equal machines, in which the first ``pairs`` marks are
    each borne by two, whether or not the members know of it."""
    count, stages = shape
    world, families = World(manifest(stages), seed, CALM), {}
    for number in range(count):
        marks = {f"ip4/203.0.{number // 2}"} if number < 2 * pairs else {f"ip4/198.51.{number}"}
        at = world.random.uniform(0, within_s)
        flops = EQUAL * world.random.uniform(0.98, 1.02)
        who = member(seed * 100 + number, flops, joined_at=WALL_S + at)
        families[who.peer] = frozenset(marks)
        world.join(replace(who, marks=families[who.peer]) if known else who, at=at)
    world.run(90, until=lambda: len(world.machines) == count and world.placed())
    assert min(world.spread()) > 0, f"{shape}, seed {seed}"
    return alone(world, families)


def alone(world: World, families: Mapping[PeerId, frozenset[str]]) -> int:
    """Return how many stages two or more relatives hold and nobody else does."""
    held = defaultdict[object, list[frozenset[str]]](list)
    for who, machine in world.machines.items():
        held[machine.seats.home.advertised].append(families[who])
    return sum(len(marks) > 1 and len(set(marks)) == 1 for marks in held.values())


def found_alone(*, known: bool, within_s: float) -> int:
    """Return ``alone`` of many worlds."""
    return sum(
        played(shape, pairs, seed, known=known, within_s=within_s)
        for shape, pairs in (((4, 2), 2), ((8, 4), 4))
        for seed in range(SEEDS)
    )


def test_relatives_that_come_together_part() -> None:
    by_chance = found_alone(known=False, within_s=0.0)
    assert by_chance > SEEDS / 8
    assert found_alone(known=True, within_s=0.0) < by_chance / 3


def test_relatives_that_come_one_by_one_part_where_there_is_room() -> None:
    assert found_alone(known=True, within_s=20.0) < found_alone(known=False, within_s=20.0) / 2


def test_a_second_replica_of_a_stage_is_not_a_relative_if_there_is_a_choice() -> None:
    """Two pairs in two stages, the fourth volunteer left out: the third joins the other pair's."""
    for seed in range(SEEDS):
        world = World(manifest(2), seed, CALM, STAYING)
        pairs, families = ("a", "b", "a"), {}
        for number, mark in enumerate(pairs):
            marks, at = frozenset({mark}), 15.0 * number
            who = member(seed * 100 + number, marks=marks, joined_at=WALL_S + at)
            families[who.peer] = marks
            world.join(who, at=at)
        world.run(90)
        assert alone(world, families) == 0, f"seed {seed}"

"""Properties 3, 5 and 9 on whole swarms: every voluntary move is watched, under churn."""

import pytest

from protocol.ids import Stage
from tests.support.matching_examples import manifest, member
from tests.support.matching_world import FULL, STORMY, Departure, Design, World, settled

ALONE = Design(dual_homing=False)
SINGLE_MOVES = (2, 4, 8, 13)
"""Seeds with which single moves happen."""
DESIGNS = pytest.mark.parametrize("design", [FULL, ALONE], ids=["full", "one-seat"])
SEEDS = (32, 33, 34, 35, 42, 43)
"""Seeds with which volunteers move that hold two stages, too."""
SHAPES = ((18, 3), (20, 4), (12, 3))
ROUNDING = 1e-4
"""Levels are found by bisection, to a few parts in a million."""


def churning(seed: int, design: Design) -> World:
    """Return a swarm of unequal peers in which every minute somebody crashes or joins."""
    count, stages = SHAPES[seed % len(SHAPES)]
    world = World(manifest(stages), seed, STORMY, design)
    dice = world.random

    def crash() -> None:
        if len(world.machines) > count - 4:
            world.crash(dice.choice(sorted(world.machines)))

    at = 60.0
    for number in range(count + 15):
        speed = dice.lognormvariate(0, 0.6) * 1e9
        founder = number < count
        joins = dice.uniform(0, 3) if founder else at
        world.join(member(seed * 1000 + number, speed, measured_s=1000.0), at=joins)
        if not founder:
            at += dice.expovariate(1 / 60)
            world.after(at, crash)
    return world


@pytest.fixture(scope="module", params=[FULL, ALONE], ids=["full", "one-seat"])
def worlds(request: pytest.FixtureRequest) -> list[World]:
    """Return what has happened in churning swarms, in the order of ``SEEDS``."""
    found = [churning(seed, request.param) for seed in SEEDS]
    for world in found:
        world.run(450)
    return found


def departures(worlds: list[World]) -> list[tuple[str, Departure, int]]:
    """Return every stage that was given up, with the seed in words and r."""
    return [
        (f"seed {seed}: {gone}", gone, world.population().redundancy)
        for seed, world in zip(SEEDS, worlds, strict=True)
        for gone in world.departures
    ]


def test_every_voluntary_move_keeps_r_replicas_where_it_leaves(worlds: list[World]) -> None:
    """A volunteer that gives up a served stage leaves r others there, unless its target has
    fewer."""
    for words, gone, r in departures(worlds):
        left = gone.replicas[gone.stage]
        assert left > 0, words
        assert left >= r or (gone.to is not None and gone.replicas[gone.to] <= left + 1), words
    assert departures(worlds)


def test_whoever_moves_serves_without_a_gap(worlds: list[World]) -> None:
    """The old stage is released when the new one is served."""
    moves = [(words, gone) for words, gone, _ in departures(worlds) if gone.to is not None]
    assert all(gone.still_served for _, gone in moves), moves
    assert moves


def test_served_throughput_does_not_drop_at_the_release_of_a_single_move() -> None:
    """The lowest level with the mover at its new home is no lower than with it at the old one,
    at the moment when the old one is given up; other moves and crashes set aside."""
    watched = 0
    for seed in SINGLE_MOVES:
        world = settled(seed, ALONE)
        for who in [
            who for who, m in sorted(world.machines.items()) if m.seats.home.advertised == Stage(0)
        ][:2]:
            world.crash(who)
        world.run(600)
        singles = {(who, move.stage) for _, who, _, move in world.single_moves()}
        for gone in world.departures:
            if (gone.who, gone.to) in singles:
                watched += 1
                assert gone.after >= gone.before * (1 - ROUNDING), f"seed {seed}: {gone}"
    assert watched > 2


# --- property 3: nobody would rather be elsewhere ---------------------------------------------


@DESIGNS
def test_no_single_move_would_pay_at_quiescence(design: Design) -> None:
    """Anybody can audit it, and everybody finds nothing; after crashes there was something."""
    tempted = 0
    for seed in range(6):
        world = settled(seed, design)
        for who in [
            who for who, m in sorted(world.machines.items()) if m.seats.home.advertised == Stage(0)
        ][:2]:
            world.crash(who)
        world.run(8)
        tempted += any(machine.blocking_moves() for machine in world.machines.values())
        world.run(900)
        for machine in world.machines.values():
            found = machine.blocking_moves()
            assert found == [], f"seed {seed}: {found}"
    assert tempted > 2 or design is FULL

"""Properties 7 and 10 with the full design: after healing there is one matching."""

from collections import Counter

import pytest

from protocol.ids import PeerId, Stage
from tests.support.matching_world import FULL, Design, World, settled

ALONE = Design(dual_homing=False)
STAGES, SEEDS = 3, 8
DETECTED_S = 6.5
"""After a cut everybody has found out within this time."""


def minority(world: World) -> set[PeerId]:
    """Return four peers of eleven that leave a stage without anybody: a good reason to move."""
    homes = {who: machine.seats.home.advertised for who, machine in world.machines.items()}
    for missing in range(STAGES):
        part = [who for who in sorted(homes) if homes[who] != missing][:4]
        if len(part) == 4:
            return set(part)
    raise AssertionError("every stage has eight of eleven")


def cut_off(seed: int, design: Design) -> tuple[World, set[PeerId], float]:
    world = settled(seed, design)
    part = minority(world)
    world.cut(part)
    cut_at = world.now
    world.run(200)
    return world, part, cut_at


def moves_of(world: World, part: set[PeerId], since: float) -> list[object]:
    return [move for move in world.set_out if move[1] in part and move[0] > since]


def test_who_is_left_fills_the_stages_that_it_lacks() -> None:
    moved = 0
    for seed in range(SEEDS):
        world, part, cut_at = cut_off(seed, ALONE)
        moved += bool(moves_of(world, part, cut_at + DETECTED_S))
    assert moved > 3


@pytest.mark.parametrize("design", [FULL, ALONE], ids=["full", "one-seat"])
def test_a_partition_of_the_full_design_heals_into_one_matching(design: Design) -> None:
    for seed in range(SEEDS):
        world, part, cut_at = cut_off(seed, design)
        homes = {who: world.machines[who].seats.home.advertised for who in part}
        world.heal()
        healed_at = world.now
        world.run(60)
        moved = {who for _, who, _, _ in world.set_out if who in part}
        kept = {who: home for who, home in homes.items() if who not in moved}
        found = {who: world.machines[who].seats.home.advertised for who in kept}
        assert found == kept, f"seed {seed}: healing displaced a serving volunteer"
        stewards = Counter(stage for m in world.machines.values() for stage in m.stewardships.held)
        assert stewards == {Stage(s): 1 for s in range(STAGES)}, f"seed {seed}"
        world.run(240)
        pools = {
            stage: set(steward.pool.places)
            for machine in world.machines.values()
            for stage, steward in machine.stewardships.held.items()
        }
        for who, machine in world.machines.items():
            at = sorted(stage for stage, places in pools.items() if who in places)
            assert at == sorted(machine.seats.stages), f"seed {seed}"
        assert healed_at > cut_at

"""Members that reach each other through a relay only gather less where they exchange tensors.

A newcomer goes where it is needed most, so there is a choice only among stages that need it alike.
Twelve seeds of 24 members in 8 stages, 10 of them behind routers that let nobody in: of the pairs
that exchange tensors .157 are relayed, .167 without the preference; in four seeds fewer, in none
more, and the lowest stage is as fast. With second stages, or few stages, nearly all pairs exchange
tensors, and there is hardly a choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from protocol.ids import PeerId, Stage
from protocol.matching.design import Design
from tests.support.matching_world import CALM, WALL_S, World, manifest, member

SEEDS = range(3)
EQUAL = 1e9
DESIGN = Design(dual_homing=False)


class Behind(World):
    """A world in which some members are behind routers that let nobody in: two such reach each
    other through a relay only."""

    closed: frozenset[PeerId] = frozenset()
    tells = True

    def _see(self, who: PeerId) -> None:
        if self.tells and who in self.closed:
            self.machines[who].set_relayed(self.closed - {who})
        super()._see(who)


def played(shape: tuple[int, int], closed: int, seed: int, *, tells: bool) -> Behind:
    """Return a settled world whose members came one by one, in a random order."""
    count, stages = shape
    world = Behind(manifest([EQUAL] * stages), seed, CALM, DESIGN)
    world.tells = tells
    found = []
    for number in range(count):
        at = world.random.uniform(0, 40)
        flops = EQUAL * world.random.uniform(0.8, 1.25)
        found.append((member(seed * 100 + number, flops, joined_at=WALL_S + at), at))
    world.closed = frozenset(who.peer for who, _ in found[:closed])
    for who, at in found:
        world.join(who, at=at)
    world.run(180, until=lambda: len(world.machines) == count and world.placed())
    return world


def near(stages: Iterable[Stage], others: Iterable[Stage]) -> bool:
    """Whether members of these stages exchange tensors."""
    return any(abs(one - other) < 2 for one in stages for other in others)


def relayed_share(world: Behind) -> float:
    """Return the share of the pairs that exchange tensors whose link is relayed."""
    held = {who: machine.stages for who, machine in world.machines.items()}
    pairs = [pair for pair in combinations(held, 2) if near(held[pair[0]], held[pair[1]])]
    return sum(world.closed.issuperset(pair) for pair in pairs) / len(pairs)


def lowest(world: Behind) -> float:
    """Return the lowest summed speed of a stage, of homes."""
    speeds = [0.0] * world.manifest.stage_count
    for who, machine in world.machines.items():
        if machine.home is not None:
            speeds[machine.home] += world.members[who].flops
    return min(speeds)


def test_fewer_pairs_are_relayed_and_no_stage_is_slower() -> None:
    told = [played((24, 8), 10, seed, tells=True) for seed in SEEDS]
    untold = [played((24, 8), 10, seed, tells=False) for seed in SEEDS]
    assert sum(map(relayed_share, told)) < 0.95 * sum(map(relayed_share, untold))
    assert sum(map(lowest, told)) > 0.98 * sum(map(lowest, untold))
    assert min(min(world.spread()) for world in told) > 1


def test_who_is_relayed_to_all_finds_its_place() -> None:
    world = played((8, 4), 8, 0, tells=True)
    assert world.placed()
    assert world.spread() == [2, 2, 2, 2]

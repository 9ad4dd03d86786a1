"""The chair or a box dies at each point of an epoch: it ends with the same matching.

Real machines. Spectators, which serve nothing, are the stewards: their death changes nothing
of the problem itself.
"""

from __future__ import annotations

import pytest

from protocol.ids import PeerId, Stage
from tests.support.cases import pairwise
from tests.support.matching_world import World, peer
from tests.support.uneven_world import POINTS, WORKERS, uneven_world


def after_first_moves(world: World, seed: int) -> dict[PeerId, Stage | None]:
    """Run until the first moves and a little longer; return who serves what."""
    world.run(100, until=lambda: world.said("moving from"))
    world.run(4)
    found = world.matching()
    return {peer(seed * 100 + n): found[peer(seed * 100 + n)] for n in range(WORKERS)}


def undisturbed(seed: int) -> dict[PeerId, Stage | None]:
    world = uneven_world(seed)
    return after_first_moves(world, seed)


SEEDS = (0, 12)
STAGES = (Stage(0), Stage(1))
"""Of the chair and of a box."""


@pytest.fixture(scope="module")
def wanted() -> dict[int, dict[PeerId, Stage | None]]:
    return {seed: undisturbed(seed) for seed in SEEDS}


@pytest.mark.parametrize(("point", "stage", "seed"), pairwise(list(POINTS), STAGES, SEEDS))
def test_the_epoch_ends_with_the_same_matching(
    point: str, stage: Stage, seed: int, wanted: dict[int, dict[PeerId, Stage | None]]
) -> None:
    world = uneven_world(seed)
    world.target = (stage, point)
    assert after_first_moves(world, seed) == wanted[seed]
    assert world.victim is not None, "never came to that point"

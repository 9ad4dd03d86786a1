"""Stages of two replicas in the chaos world: umpires expel the one that lies, never the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from client.lab.simulate.chaos.config import ChaosConfig, drawn
from client.lab.simulate.chaos.replay import run_once
from tests.support.cases import usual

SHARE = 0.1
WITHIN = 30
"""Steps: of forty seeds the slowest needed fewer."""


def two_by_two(seed: int, *lies: str, stages: int = 2) -> ChaosConfig:
    """Two replicas a stage; the liar is one of them."""
    config = replace(drawn(seed, lies, SHARE), stages=stages, replicas=2, among=bool(lies))
    return replace(config, faults=20, gap_s=3.0)


@pytest.mark.parametrize("seed", usual(2, range(4)))
def test_one_of_two_that_contributes_lies_is_out_soon(seed: int) -> None:
    world, violation = run_once(two_by_two(seed, "gradients"))
    assert not violation
    assert not world.audits.undiscovered
    assert max(world.audits.lasted) <= WITHIN


@pytest.mark.parametrize("seed", usual(2, [2, 0, 1]))
def test_of_three_stages_the_first_and_the_last_have_umpires(seed: int) -> None:
    """In seed 2 the liar is between two stages, whose members could not agree on a majority."""
    world, violation = run_once(two_by_two(seed, "gradients", stages=3))
    assert not violation
    assert bool(world.audits.undiscovered) == (world.liar.stage == 1)


def test_no_accuser_goes_on_alone_by_a_majority_of_its_own() -> None:
    """Its last plan named one of two umpires; both replicas of the other stage stay with it."""
    world, violation = run_once(two_by_two(11, "gradients"))
    assert not violation
    assert not world.audits.undiscovered


@pytest.mark.parametrize("seed", usual(2, range(4)))
def test_one_of_two_that_accuses_the_other_is_out_itself(seed: int) -> None:
    """In seed 0 an umpire has no memory when it hears of the case first, and some later."""
    world, violation = run_once(two_by_two(seed, "audits"))
    assert not violation, "no honest member is expelled (A1)"
    assert not world.audits.undiscovered


@pytest.mark.parametrize("seed", usual(1, range(3)))
def test_suspicion_among_honest_ones_expels_nobody(seed: int) -> None:
    world, violation = run_once(replace(two_by_two(seed), unlike=0.25))
    assert not violation
    assert any("is unlike ours" in line for line in world.log)
    assert world.audits.found.keys() <= {"agrees", "void", "refused"}
    assert not any("we look into it" in line for line in world.log)


@pytest.mark.parametrize("seed", usual(1, range(3)))
def test_among_honest_ones_nobody_is_looked_into(seed: int) -> None:
    world, violation = run_once(two_by_two(seed))
    assert not violation
    assert world.audits.found.keys() <= {"agrees", "void", "refused"}
    assert not any("we look into it" in line for line in world.log)

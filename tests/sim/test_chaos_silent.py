"""The only replica of a stage falls silent: it is waited for as long as that pays.

Steps of about 0.9 s, no checkpoint yet, cut off for 12 s after some 35 steps: waiting loses no
step, where all of them were made again before.
"""

from __future__ import annotations

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.world import ChaosWorld
from protocol.recovery import deciding

CUT_AT_S, AWAY_S, AFTER_S = 34.0, 12.0, 12.0


def cut_off(seed: int, *, returns: bool) -> tuple[ChaosWorld, int]:
    """Cut off the only replica of the middle stage of three; return the world some time later, and
    the version that all stages had then."""
    config = ChaosConfig(
        seed=seed, stages=3, replicas=2, per_step=4, checkpoint_every=40, links_survive_silence=True
    )
    world = ChaosWorld(config, faults=[])
    only, other = (v for v in world.volunteers.values() if v.stage == 1)
    world.crash(other, wipe=False)
    other.retired = True
    world.advance_to(CUT_AT_S)
    before = min(world.versions())
    world.network.split({only.peer: 1}, lossy=False)
    world.advance_to(CUT_AT_S + AWAY_S)
    if returns:
        world.network.heal()
    world.advance_to(CUT_AT_S + AWAY_S + (AFTER_S if returns else 3 * AFTER_S))
    return world, before


def roll_backs(world: ChaosWorld) -> int:
    return max(volunteer.recovery.lineage.number for volunteer in world.present())


@pytest.mark.parametrize("seed", range(2))
def test_one_that_returns_soon_costs_no_step(seed: int) -> None:
    world, before = cut_off(seed, returns=True)
    assert before > 20
    assert roll_backs(world) == 0, f"seed {seed}"
    assert min(world.versions()) > before, f"seed {seed}"


def test_without_the_wait_all_of_them_would_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "SILENT_SHARE", 0.0)
    world, _ = cut_off(0, returns=True)
    assert roll_backs(world) == 1


def test_one_that_does_not_return_is_not_waited_for_for_ever() -> None:
    world, _ = cut_off(0, returns=False)
    assert roll_backs(world) == 1

"""The only replica of a stage falls silent: it is waited for as long as that pays.

Steps of about 0.9 s, no checkpoint yet, cut off for 12 s after some 35 steps: waiting loses no
step, where all of them would be made again.
"""

from __future__ import annotations

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.world import ChaosWorld

CUT_AT_S, AWAY_S, AFTER_S = 34.0, 12.0, 12.0


@pytest.mark.parametrize("seed", range(2))
def test_one_that_returns_soon_costs_no_step(seed: int) -> None:
    config = ChaosConfig(
        seed=seed, stages=3, replicas=2, per_step=4, checkpoint_every=40, links_survive_silence=True
    )
    world = ChaosWorld(config, faults=[])
    only, other = (v for v in world.volunteers.values() if v.stage == 1)
    world.crash(other, wipe=False)
    other.retired = True
    world.advance_to(CUT_AT_S)
    before = min(world.versions())
    assert before > 20
    world.network.split({only.peer: 1}, lossy=False)
    world.advance_to(CUT_AT_S + AWAY_S)
    world.network.heal()
    world.advance_to(CUT_AT_S + AWAY_S + AFTER_S)
    rolled_back = max(volunteer.recovery.lineage.number for volunteer in world.present())
    assert rolled_back == 0, f"seed {seed}"
    assert min(world.versions()) > before, f"seed {seed}"

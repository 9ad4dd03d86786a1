"""Where some pairs reach each other through one relay only, work goes where it needs no relay.

A relay of 5 MB/s, and boundaries of 4 MB on lines of 20 MB/s. Without the rule a replica is chosen
by its load alone: steps then take half as long again where two of three are behind routers.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import pytest

from client.lab.simulate.training import WorldConfig
from protocol.pipeline import next_hop
from tests.support.relayed_world import RelayedWorld

SEEDS = range(2)
RELAY_BYTES_PER_S = 5e6
RATE = 1 / 0.6
STEPS = 2


@dataclass(frozen=True)
class Played:
    """Means of several runs."""

    step_s: float
    relayed_share: float


def played(replicas: int, closed: int) -> Played:
    """Train swarms of three stages, in each of which so many replicas are behind routers that let
    nobody in."""
    worlds = []
    for seed in SEEDS:
        config = WorldConfig(
            stages=3,
            replicas=replicas,
            per_step=12 * replicas,
            steps=STEPS,
            seed=seed,
            delay_s=(0.01, 0.05),
            compute_s=(0.2, 0.4),
        )
        world = RelayedWorld(config, lambda _stage: closed, RELAY_BYTES_PER_S, RATE)
        world.start_clock()
        world.run(3600.0)
        worlds.append(world)
    step_s = mean(world.done_at for world in worlds) / STEPS
    return Played(step_s, mean(world.relayed_share for world in worlds))


def without_the_rule(replicas: int, closed: int) -> Played:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_hop, "RELAYED_MORE", 0.0)
        return played(replicas, closed)


@pytest.mark.parametrize(("replicas", "closed", "most"), [(2, 1, 0.95), (3, 2, 0.8)])
def test_fewer_bytes_are_relayed_and_steps_are_shorter(
    replicas: int, closed: int, most: float
) -> None:
    now, before = played(replicas, closed), without_the_rule(replicas, closed)
    assert now.relayed_share < 0.6 * before.relayed_share
    assert now.step_s < most * before.step_s


def test_where_all_are_direct_nothing_changes() -> None:
    now = played(2, 0)
    assert now == without_the_rule(2, 0)
    assert now.relayed_share == 0


def test_who_can_only_be_relayed_is_used_all_the_same() -> None:
    assert played(1, 1).relayed_share == 1.0

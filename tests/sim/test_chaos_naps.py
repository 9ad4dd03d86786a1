"""A replica of a run's only stage sleeps often and soon wakes, as a laptop does.

Each time one of two has gone on alone, nobody else can say so. Without ``Quorum.suffice`` its word
was believed ever later, and the run of seed 14 stood still for 378 s, waiting for the one that
waited for a witness. Without ``Quorum.needs`` each of three (seed 23) had set another one aside,
was left with one elector, and all of them stood still for 102 s.
"""

from __future__ import annotations

import random

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.schedule import Fault
from client.lab.simulate.chaos.world import ChaosWorld

NAPS = 60
EVERY_S, NAP_S = 12.0, (1.5, 9.0)
STANDS_S = 60.0
"""The longest time without a new version: others sleep as soon as one is awake and looks around."""
OUT_S = 130.0
"""The longest time without one of two: it is set aside for a minute, the next time for two."""


def naps(seed: int) -> list[Fault]:
    draw, at, found = random.Random(seed), 5.0, list[Fault]()
    for _ in range(NAPS):
        at += draw.expovariate(1 / EVERY_S)
        who, span_s = draw.randrange(1000), round(draw.uniform(*NAP_S), 2)
        found.append(Fault(round(at, 3), "pause", who, span_s))
    return found


@pytest.mark.parametrize(("seed", "replicas"), [(10, 2), (14, 2), (23, 3)])
def test_who_sleeps_often_is_soon_back_and_nobody_stands_still(seed: int, replicas: int) -> None:
    faults = naps(seed)
    config = ChaosConfig(seed=seed, stages=1, replicas=replicas, audits=0.2)
    world = ChaosWorld(config, faults)
    newest, risen_at, together_at = 0, 0.0, 0.0
    while world.agenda.now < faults[-1].at + OUT_S:
        world.advance_to(world.agenda.now + 1.0)
        now, versions = world.agenda.now, [v.seat.step for v in world.present() if v.seat]
        if max(versions, default=0) > newest:
            newest, risen_at = max(versions), now
        if replicas > 2 or (len(versions) == 2 and min(versions) >= newest - 3):
            together_at = now
        assert now - risen_at < STANDS_S, f"seed {seed}: no version after {newest}"
        assert now - together_at < OUT_S, f"seed {seed}: one is out since {together_at}"
    assert newest > 0.5 * faults[-1].at, "steps of about half a second"

"""A replica of a run's only stage sleeps often and soon wakes, as a laptop does.

Without ``Quorum.needs`` each of three (seed 23) sets another one aside and is left with one
elector, so that all of them stand still for more than a minute.
"""

import math
import random

import pytest

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.schedule import Fault
from client.lab.simulate.chaos.world import ChaosWorld
from tests.support.cases import usual

STANDS_S = 60.0
"""The longest time without a new version: others sleep as soon as one is awake."""
OUT_S = 130.0
"""The longest time without one of two: it is set aside for a minute, the next time for two."""


EVERY_S, NAP_S = 12.0, (1.5, 9.0)
AFTER_S = 130.0
"""How long the run is watched after the last nap."""
LOOK_S = 0.5
NEAR = 3
"""Versions by which a replica may lag and still be with the others."""


def naps(seed: int, count: int) -> list[Fault]:
    """Return when and how long somebody sleeps; who, the world draws among those that may."""
    draw, at, found = random.Random(seed), 5.0, list[Fault]()
    for _ in range(count):
        at += draw.expovariate(1 / EVERY_S)
        who, span_s = draw.randrange(1000), round(draw.uniform(*NAP_S), 2)
        found.append(Fault(round(at, 3), "pause", who, span_s))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "replicas", "count", "out_s"),
    usual(1, [(14, 2, 30, OUT_S), (23, 3, 60, math.inf), (10, 2, 60, OUT_S), (14, 2, 60, OUT_S)]),
)
def test_who_sleeps_often_is_soon_back_and_nobody_stands_still(
    seed: int, replicas: int, count: int, out_s: float
) -> None:
    faults = naps(seed, count)
    world = ChaosWorld(ChaosConfig(seed=seed, stages=1, replicas=replicas, audits=0.2), faults)
    newest, risen_at, together_at, now = 0, 0.0, 0.0, 0.0
    while now < faults[-1].at + AFTER_S:
        world.advance_to(now + LOOK_S)
        now = world.agenda.now
        versions = [one.seat.step for one in world.present() if one.seat]
        if max(versions, default=0) > newest:
            newest, risen_at = max(versions), now
        if len(versions) == replicas and min(versions) >= newest - NEAR:
            together_at = now
        assert now - risen_at < STANDS_S, f"seed {seed}: no version after {newest}"
        assert now - together_at < out_s, f"seed {seed}: one is out since {together_at}"
    assert newest > 0.5 * now, "steps of about half a second"

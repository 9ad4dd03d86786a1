"""Replicas of a run's only stage that sleep often and soon wake, as laptops do; simulated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from client.lab.simulate.chaos.config import ChaosConfig
from client.lab.simulate.chaos.schedule import Fault
from client.lab.simulate.chaos.world import ChaosWorld

EVERY_S, NAP_S = 12.0, (1.5, 9.0)
AFTER_S = 130.0
"""How long the run is watched after the last nap."""
LOOK_S = 0.5
NEAR = 3
"""Versions by which a replica may lag and still be with the others."""


@dataclass(frozen=True)
class Seen:
    """How the stage goes on at a moment."""

    now: float
    newest: int
    """Version."""
    all_here: bool
    """Whether every replica is at it, or almost."""


def naps(seed: int, count: int) -> list[Fault]:
    """Return when and how long somebody sleeps; who, the world draws among those that may."""
    draw, at, found = random.Random(seed), 5.0, list[Fault]()
    for _ in range(count):
        at += draw.expovariate(1 / EVERY_S)
        who, span_s = draw.randrange(1000), round(draw.uniform(*NAP_S), 2)
        found.append(Fault(round(at, 3), "pause", who, span_s))
    return found


def watched(seed: int, replicas: int, count: int) -> Iterator[Seen]:
    """Run a stage of so many replicas through its naps, and look at it twice a second."""
    faults = naps(seed, count)
    world = ChaosWorld(ChaosConfig(seed=seed, stages=1, replicas=replicas, audits=0.2), faults)
    newest = 0
    while world.agenda.now < faults[-1].at + AFTER_S:
        world.advance_to(world.agenda.now + LOOK_S)
        versions = [one.seat.step for one in world.present() if one.seat]
        newest = max([newest, *versions])
        here = len(versions) == replicas and min(versions) >= newest - NEAR
        yield Seen(world.agenda.now, newest, here)

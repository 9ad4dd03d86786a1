"""Slow peers, hung peers and backups, in seeded swarms; I1, I2 and I5 hold in every one of them.

Measured with the seeds below: DOCSTRING
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest
from straggler_world import Slowness, StragglerWorld, even

from client.simulate.peer import SimPeer
from client.simulate.training import WorldConfig
from protocol.pipeline.effects import (
    BackwardTask,
    ForwardTask,
    LossTask,
    PayloadKey,
    SubtractTask,
    Task,
)

MICROBATCH_TASKS = (ForwardTask, BackwardTask, LossTask, SubtractTask)
LIMIT_S = 3600.0


def config(seed: int, stages: int = 2, replicas: int = 2, steps: int = 12) -> WorldConfig:
    """Tasks of some tenths of a second, as volunteers have them, and 24 microbatches per step."""
    return WorldConfig(stages, replicas, 24, steps, seed=seed, compute_s=(0.2, 0.4))


def run(world: StragglerWorld) -> StragglerWorld:
    world.start_clock()
    world.run(LIMIT_S)
    return world


def slower(stage: int, factor: float) -> Slowness:
    """The first replica of a stage is slower all the time."""
    first: list[SimPeer] = []

    def slowness(world: StragglerWorld, peer: SimPeer, task: Task) -> float:
        return factor if peer is world.of_stage(stage)[0] else 1.0

    return slowness

"""The one-step-delayed update in simulated swarms: sooner done and as exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from client.lab.simulate.chaos.config import drawn
from client.lab.simulate.chaos.replay import run_once
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.pipeline.pipeline import Pipeline
from tests.support.cases import usual

SEEDS = range(3)
CHAOS_SEEDS = (range(2), range(2, 60))


def trained(config: WorldConfig) -> TrainingWorld:
    world = TrainingWorld(config)
    world.start_clock()
    world.run()
    return world


def every_version(config: WorldConfig) -> set[tuple[int, int]]:
    return {(s, v) for s in range(config.stages) for v in range(1, config.steps + 1)}


def test_steps_take_less_virtual_time() -> None:
    """Three stages stand idle while a synchronous step is filled, drained and averaged."""
    shares = []
    for seed in SEEDS:
        config = WorldConfig(stages=3, replicas=2, per_step=8, steps=20, seed=seed)
        worlds = [trained(replace(config, delayed=delayed)) for delayed in (False, True)]
        assert all(world.hashes.keys() == every_version(config) for world in worlds)
        synchronous, delayed = (world.agenda.now for world in worlds)
        shares.append(delayed / synchronous)
    assert sum(shares) / len(shares) < 0.9, shares


def broken(seed: int) -> str:
    """Run a delayed world in which two hundred things go wrong; what it breaks."""
    return run_once(replace(drawn(seed), delayed=True))[1]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", usual(1, CHAOS_SEEDS))
def test_chaos_breaks_no_invariant(seeds: Iterable[int]) -> None:
    failed = {seed: violation for seed in seeds if (violation := broken(seed))}
    assert not failed, "\n\n".join(failed.values())


def test_a_delayed_chaos_world_works_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The premise of the seeds above: microbatches are computed before their step begins."""
    begun_ahead = 0
    original = Pipeline.start_step

    def start_step(self: Pipeline, step: int, now: float) -> object:
        nonlocal begun_ahead
        begun_ahead += len(self.done(step))
        return original(self, step, now)

    monkeypatch.setattr(Pipeline, "start_step", start_step)
    world, violation = run_once(replace(drawn(3), delayed=True))
    assert not violation
    assert begun_ahead > min(world.versions())

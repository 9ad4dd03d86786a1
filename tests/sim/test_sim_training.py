"""The seat machines train a simulated swarm; invariants are checked on every commit."""

from __future__ import annotations

from functools import partial

import pytest

from client.lab.simulate.multisets import MultisetWorker
from client.lab.simulate.training import TrainingWorld, WorldConfig
from tests.support.cases import usual


def run(world: TrainingWorld) -> TrainingWorld:
    world.start_clock()
    world.run()
    return world


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_fault_free_run_commits_every_step(stages: int, replicas: int) -> None:
    for seed in range(3):
        config = WorldConfig(stages=stages, replicas=replicas, seed=seed)
        world = run(TrainingWorld(config))
        assert set(world.hashes) == {
            (s, v) for s in range(stages) for v in range(1, config.steps + 1)
        }


@pytest.mark.parametrize("seed", usual(20, range(75)))
def test_one_kill_per_stage_loses_nothing(seed: int) -> None:
    config = WorldConfig(stages=3, replicas=2, seed=seed, steps=16)
    world = TrainingWorld(config)
    for index, stage in enumerate(world.random.sample(range(3), 3)):
        victim = next(p for p in world.peers.values() if p.stage == stage)
        at = 2.5 * index + world.random.uniform(0.05, 1.0)  # one at a time, in any phase
        world.after(at, lambda v=victim: world.kill(v))
    run(world)


@pytest.mark.parametrize("seed", usual(15, range(50)))
def test_newcomers_catch_up_while_training_goes_on(seed: int) -> None:
    config = WorldConfig(stages=2, replicas=2, seed=seed, steps=14)
    world = TrainingWorld(config)
    for index in range(3):
        at = world.random.uniform(0.0, 2.5)
        world.after(at, lambda i=index: world.join(i % 2, f"new{i}"))
    victim = next(iter(world.peers.values()))
    world.after(world.random.uniform(0.5, 3.0), lambda: world.kill(victim))
    run(world)
    assert all(p.hash == world.hashes[p.stage, 14] for p in world.peers.values() if p.alive)


@pytest.mark.parametrize("seed", usual(8, range(25)))
def test_hashes_that_come_later_than_their_versions_lose_nothing(seed: int) -> None:
    config = WorldConfig(stages=2, replicas=2, seed=seed, steps=14)
    world = TrainingWorld(config, partial(MultisetWorker, hashes_later=True))
    world.after(world.random.uniform(0.0, 1.5), lambda: world.join(0, "new"))
    victim = next(p for p in world.peers.values() if p.stage == 1)
    world.after(world.random.uniform(0.5, 3.0), lambda: world.kill(victim))
    run(world)
    assert set(world.hashes) >= {(s, v) for s in range(2) for v in range(1, 15)}
    assert all(p.hash == world.hashes[p.stage, 14] for p in world.peers.values() if p.alive)


def test_who_has_finished_waits_for_nothing() -> None:
    """A deadline that has passed and stays makes a node tick a hundred times a second."""
    world = run(TrainingWorld(WorldConfig(stages=2, replicas=2, steps=3)))
    later = world.agenda.now + 60.0
    for peer in world.peers.values():
        assert peer.seat is not None
        assert peer.seat.finished
        peer.seat.tick(later)
        due = peer.seat.next_deadline()
        assert due is None or due > later

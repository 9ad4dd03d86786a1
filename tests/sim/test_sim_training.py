"""The seat machines train a simulated swarm; invariants are checked on every commit."""

from __future__ import annotations

import pytest

from client.lab.simulate.training import TrainingWorld, WorldConfig


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

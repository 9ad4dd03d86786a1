"""Over long lines as many microbatches are in flight as keep the slowest stage busy."""

from __future__ import annotations

import itertools

import pytest

from client.lab.simulate.peer import SimPeer
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.pipeline.effects import Committed

WAY_S, TASK_S, EACH = 0.5, 0.05, 120
"""One way of every line; one task of a worker; microbatches of a replica in a step."""


class TimedWorld(TrainingWorld):
    """Notes when the first stage closes its steps."""

    def committed(self, peer: SimPeer, committed: Committed) -> None:
        super().committed(peer, committed)
        if committed.stage == 0:
            self.closed.setdefault(committed.version, self.agenda.now)

    closed: dict[int, float]


def seconds_per_step(replicas: int, steps: int = 5) -> list[float]:
    config = WorldConfig(
        replicas=replicas,
        per_step=EACH * replicas,
        steps=steps,
        delay_s=(WAY_S, WAY_S),
        compute_s=(TASK_S, TASK_S),
    )
    world = TimedWorld(config)
    world.closed = {}
    world.start_clock()
    world.run(1000.0)
    moments = [world.closed[version] for version in range(1, steps + 1)]
    return [later - before for before, later in itertools.pairwise(moments)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_long_line_costs_its_length_once_a_step(replicas: int) -> None:
    """Forward and backward at stage 0 are the slowest place; one there and back fills the line."""
    tau_s, way_s = 2 * TASK_S, 3 * TASK_S + 2 * WAY_S
    # a round's messages and leases of its leader; who is alone asks an elector beside for its vote
    rounds_s = (6 if replicas > 1 else 1) * 2 * WAY_S
    ideal_s = (EACH - 1) * tau_s + way_s
    assert max(seconds_per_step(replicas)) <= 1.05 * ideal_s + rounds_s

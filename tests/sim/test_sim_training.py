"""The seat machines train a simulated swarm without faults with few messages, at the pace of its
slowest place; invariants are checked on every commit."""

import itertools
from collections import Counter

import pytest

from client.lab.simulate.peer import SimPeer
from client.lab.simulate.training import TrainingWorld, WorldConfig
from protocol.pipeline.effects import Committed

MOST, BEGUN = 120, 2
"""Messages a step of three stages of three replicas and eight microbatches, once so many steps are
closed: until then views differ, and several lease. By six seeds it is 113 to 117. Heartbeats are
not counted, nor are segments and their sums, which are as many as the bytes of a stage need."""
WAY_S, TASK_S, EACH = 0.5, 0.05, 120
"""One way of a long line; one task of a worker; microbatches of a replica in a step."""


class TimedWorld(TrainingWorld):
    """Notes when the first stage closes its steps, and the messages until then."""

    def __init__(self, config: WorldConfig) -> None:
        self.closed: dict[int, float] = {}
        self.said: dict[int, Counter[str]] = {}
        super().__init__(config)

    def committed(self, peer: SimPeer, committed: Committed) -> None:
        super().committed(peer, committed)
        if committed.stage == 0:
            self.closed.setdefault(committed.version, self.agenda.now)
            self.said.setdefault(committed.version, self.messages.copy())


def trained(config: WorldConfig, limit_s: float = 120.0) -> TimedWorld:
    """A world whose run has come to its end."""
    world = TimedWorld(config)
    world.start_clock()
    world.run(limit_s)
    return world


def test_a_step_takes_few_messages() -> None:
    config = WorldConfig(stages=3, replicas=3, per_step=8, steps=12)
    world, steps = trained(config), config.steps - BEGUN
    messages = world.messages - world.said[BEGUN]
    for kind in ("Segment", "Reduced"):
        del messages[kind]
    assert messages.total() <= MOST * steps, {
        kind: count / steps for kind, count in messages.most_common()
    }


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_long_line_costs_its_length_once_a_step(replicas: int) -> None:
    """As many microbatches are in flight as keep the slowest stage busy: forward and backward at
    stage 0 are the slowest place; one there and back fills the line."""
    config = WorldConfig(
        replicas=replicas,
        per_step=EACH * replicas,
        steps=5,
        delay_s=(WAY_S, WAY_S),
        compute_s=(TASK_S, TASK_S),
    )
    closed = trained(config, limit_s=1000.0).closed
    moments = [closed[version] for version in range(1, config.steps + 1)]
    tau_s, way_s = 2 * TASK_S, 3 * TASK_S + 2 * WAY_S
    # a round's messages and leases of its leader; who is alone asks an elector beside for its vote
    rounds_s = (6 if replicas > 1 else 1) * 2 * WAY_S
    ideal_s = (EACH - 1) * tau_s + way_s
    longest_s = max(later - before for before, later in itertools.pairwise(moments))
    assert longest_s <= 1.05 * ideal_s + rounds_s

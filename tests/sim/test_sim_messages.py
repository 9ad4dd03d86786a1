"""How many messages a step takes while nothing fails; heartbeats are not counted."""

from client.lab.simulate.training import TrainingWorld, WorldConfig

STEPS = 12
MOST = 170
"""Messages a step of three stages of three replicas and eight microbatches."""


def test_a_step_takes_few_messages() -> None:
    world = TrainingWorld(WorldConfig(stages=3, replicas=3, per_step=8, steps=STEPS))
    world.start_clock()
    world.run()
    assert world.messages.total() <= MOST * STEPS, {
        kind: count / STEPS for kind, count in world.messages.most_common()
    }

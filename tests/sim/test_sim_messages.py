"""How many messages a step takes while nothing fails. Heartbeats are not counted, nor are segments
and their sums, which are as many as the bytes of a stage need."""

from client.lab.simulate.training import TrainingWorld, WorldConfig

STEPS = 12
MOST = 152
"""Messages a step of three stages of three replicas and eight microbatches."""


def test_a_step_takes_few_messages() -> None:
    world = TrainingWorld(WorldConfig(stages=3, replicas=3, per_step=8, steps=STEPS))
    world.start_clock()
    world.run()
    for kind in ("Segment", "Reduced"):
        del world.messages[kind]
    assert world.messages.total() <= MOST * STEPS, {
        kind: count / STEPS for kind, count in world.messages.most_common()
    }

"""The patience with a worker: long at first, then by the time of the same kind of task."""

from client.train.workers.patience import AT_LEAST_S, TIMES_THE_LONGEST, UNKNOWN_S, Patience
from protocol.pipeline.effects import BackwardTask, ForwardTask

FORWARD = ForwardTask(0, 0)
BACKWARD = BackwardTask(0, 0)


def test_each_kind_of_task_has_its_own_measure() -> None:
    patience = Patience()
    assert patience.seconds(FORWARD) == UNKNOWN_S
    patience.note(FORWARD, 20.0)
    patience.note(FORWARD, 2.0)
    assert patience.seconds(FORWARD) == 20.0 * TIMES_THE_LONGEST
    assert patience.seconds(BACKWARD) == UNKNOWN_S


def test_quick_tasks_are_not_held_to_their_own_speed() -> None:
    patience = Patience()
    patience.note(FORWARD, 0.01)
    assert patience.seconds(FORWARD) == AT_LEAST_S

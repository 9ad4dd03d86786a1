"""Boundaries of the next step are kept until it begins; nothing of it is computed before."""

import pytest

from protocol.pipeline.effects import ForwardTask, Outcome, Task
from protocol.pipeline.pipeline import WORKER_DEPTH, Pipeline
from protocol.pipeline.place import Place
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Forward, Receipt
from tests.support.effects import sent, tasks
from tests.support.protocol_examples import peer

ME, BEFORE, AFTER = peer(1), peer(2), peer(3)
PER_STEP, STEP = 8, 3


class Line:
    """A replica of one of three stages; everybody is at the same version."""

    def __init__(self, stage: int = 1) -> None:
        self.stage = stage
        self.made = Pipeline(Place(ME, stage, 3, PER_STEP), STEP)
        stages = [[Replica(peer(9), STEP, True)] for _ in range(3)]
        stages[stage] = [Replica(ME, STEP, True)]
        if stage < 2:
            stages[stage + 1] = [Replica(AFTER, STEP, True)]
        self.made.update_view(SwarmView.of(stages), 0.0)

    def offer(self, microbatch: int) -> list[Task]:
        """A boundary comes; return what the worker is given."""
        return tasks(self.forward(microbatch))

    def forward(self, microbatch: int) -> list[object]:
        step = microbatch // PER_STEP
        message = Forward(self.stage, step, microbatch, 1, again=False)
        return list(self.made.forward(BEFORE, message, b"", 0.0))

    def verdict(self, microbatch: int) -> str:
        [(_, receipt)] = sent(self.forward(microbatch), Receipt)
        return receipt.verdict

    def done(self, task: Task) -> list[Task]:
        """The worker has done it; return what it is given next."""
        return tasks(self.made.computed(task, Outcome(loss_sum=1.0), 0.0))

    def start_step(self, step: int) -> list[Task]:
        return tasks(self.made.start_step(step, 0.0))


def ids(step: int) -> range:
    return range(step * PER_STEP, (step + 1) * PER_STEP)


NOW, NEXT, AFTER_NEXT = ids(STEP), ids(STEP + 1), ids(STEP + 2)


def test_the_worker_gets_the_next_step_when_it_begins() -> None:
    line = Line()
    assert line.offer(NEXT[0]) == []
    line.made.close()
    assert line.offer(NEXT[1]) == []
    assert line.offer(NEXT[2]) == []
    assert line.made.in_flight() == set()
    begun = line.start_step(STEP + 1)
    assert begun == [ForwardTask(STEP + 1, m) for m in NEXT[:WORKER_DEPTH]]
    assert line.made.in_flight() == set(NEXT[:3])


def test_while_a_step_is_closed_the_worker_gets_nothing_of_it() -> None:
    line = Line()
    line.made.close()
    assert line.offer(NOW[0]) == []
    assert line.made.waiting == 0
    assert line.made.in_flight() == {NOW[0]}


def test_a_task_of_the_closed_step_that_ends_now_counts_nowhere() -> None:
    line = Line()
    line.offer(NOW[0])
    line.offer(NEXT[0])
    assert line.start_step(STEP + 1) == [ForwardTask(STEP + 1, NEXT[0])]
    assert line.done(ForwardTask(STEP, NOW[0])) == []
    assert line.made.done() == set()
    assert line.made.in_flight() == {NEXT[0]}


def test_boundaries_are_kept_one_step_beyond_the_current_one() -> None:
    line = Line()
    assert line.verdict(NEXT[0]) == "accepted"
    assert line.verdict(AFTER_NEXT[0]) == "stale"
    assert line.verdict(ids(STEP - 1)[0]) == "stale"


@pytest.mark.parametrize("step", [STEP - 1, STEP + 1])
def test_no_other_step_is_leased(step: int) -> None:
    line = Line(stage=0)
    assert line.made.lease(list(ids(step)), again=False, now=0.0) == []
    assert line.made.empty

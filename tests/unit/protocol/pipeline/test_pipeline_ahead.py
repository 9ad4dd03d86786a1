"""With the one-step-delayed update a replica works on the next step when the current one rests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.effects import Penalise, Send
from protocol.pipeline.effects import (
    BackwardTask,
    Compute,
    ForwardTask,
    GradientAccepted,
    Keep,
    LossTask,
    Outcome,
    SendPayload,
    Task,
)
from protocol.pipeline.pipeline import DEPTH_AHEAD, WORKER_DEPTH, Pipeline
from protocol.pipeline.place import Place
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Backward, Forward, Receipt
from tests.support.protocol_examples import peer

ME, BEFORE, AFTER = peer(1), peer(2), peer(3)
PER_STEP, STEP = 8, 3


class Line:
    """A replica of one of three stages; everybody is at the same version."""

    def __init__(self, stage: int = 1, *, delayed: bool = True) -> None:
        self.stage = stage
        self.made = Pipeline(Place(ME, stage, 3, PER_STEP), STEP, delayed=delayed)
        stages = [[Replica(peer(9), STEP, True)] for _ in range(3)]
        stages[stage] = [Replica(ME, STEP, True)]
        if stage < 2:
            stages[stage + 1] = [Replica(AFTER, STEP, True)]
        self.made.update_view(SwarmView.of(stages), 0.0)
        self.attempts: dict[int, int] = {}

    def offer(self, microbatch: int) -> list[Task]:
        """A boundary comes; return what the worker is given."""
        return self.seen(self.forward(microbatch))

    def forward(self, microbatch: int) -> list[object]:
        step = microbatch // PER_STEP
        message = Forward(self.stage, step, microbatch, 1, 8, again=False)
        return list(self.made.forward(BEFORE, message, 0.0))

    def verdict(self, microbatch: int) -> str:
        [verdict] = verdicts(self.forward(microbatch))
        return verdict

    def done(self, task: Task) -> list[Task]:
        """The worker has done it; return what it is given next."""
        assert isinstance(task, ForwardTask | LossTask | BackwardTask)
        return self.seen(self.made.computed(task, Outcome(loss_sum=1.0), 0.0))

    def gradient(self, microbatch: int) -> list[object]:
        step, attempt = microbatch // PER_STEP, self.attempts.get(microbatch, 1)
        message = Backward(self.stage, step, microbatch, attempt)
        return list(self.made.backward(AFTER, message, 0.0))

    def start_step(self, step: int) -> list[Task]:
        return self.seen(self.made.start_step(step, 0.0))

    def seen(self, effects: Sequence[object]) -> list[Task]:
        for effect in effects:
            if isinstance(effect, SendPayload) and isinstance(effect.message, Forward):
                self.attempts[effect.message.microbatch] = effect.message.attempt
        return tasks(effects)


def tasks(effects: Sequence[object]) -> list[Task]:
    return [effect.task for effect in effects if isinstance(effect, Compute)]


def verdicts(effects: Sequence[object]) -> list[str]:
    said = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message.verdict for message in said if isinstance(message, Receipt)]


def ids(step: int) -> range:
    return range(step * PER_STEP, (step + 1) * PER_STEP)


NOW, NEXT, AFTER_NEXT = ids(STEP), ids(STEP + 1), ids(STEP + 2)


class TestWhatTheWorkerIsGiven:
    def test_the_next_step_when_the_current_one_has_nothing(self) -> None:
        line = Line()
        assert line.offer(NEXT[0]) == [ForwardTask(STEP + 1, NEXT[0])]
        assert line.made.newest == STEP + 1

    def test_not_in_a_synchronous_run(self) -> None:
        line = Line(delayed=False)
        assert line.offer(NEXT[0]) == []
        line.made.close()
        assert line.offer(NEXT[1]) == []
        assert line.made.newest == STEP
        begun = line.start_step(STEP + 1)
        assert begun == [ForwardTask(STEP + 1, m) for m in NEXT[:2]]

    def test_the_current_step_first(self) -> None:
        line = Line()
        assert line.offer(NEXT[0]) == [ForwardTask(STEP + 1, NEXT[0])]
        assert line.offer(NEXT[1]) == []
        assert line.offer(NOW[5]) == [ForwardTask(STEP, NOW[5])]
        assert line.offer(NOW[6]) == [], "two are with the worker"
        assert line.done(ForwardTask(STEP + 1, NEXT[0])) == [ForwardTask(STEP, NOW[6])]

    def test_a_gradient_of_the_current_step_goes_before_one_of_the_next(self) -> None:
        line = Line()
        for microbatch in (NOW[0], NEXT[0], NEXT[1]):
            line.offer(microbatch)
        line.done(ForwardTask(STEP, NOW[0]))
        line.done(ForwardTask(STEP + 1, NEXT[0]))  # the other one is with the worker
        assert tasks(line.gradient(NEXT[0])) == []
        assert tasks(line.gradient(NOW[0])) == [BackwardTask(STEP, NOW[0])]
        assert line.done(ForwardTask(STEP + 1, NEXT[1])) == []
        assert line.done(BackwardTask(STEP, NOW[0])) == [BackwardTask(STEP + 1, NEXT[0])]

    def test_and_so_does_a_boundary_of_the_current_step(self) -> None:
        line = Line()
        for microbatch in NEXT[:2]:
            line.offer(microbatch)
        line.done(ForwardTask(STEP + 1, NEXT[0]))  # the other one is with the worker
        assert tasks(line.gradient(NEXT[0])) == []
        assert line.offer(NOW[0]) == [ForwardTask(STEP, NOW[0])]
        assert line.offer(NOW[1]) == []
        assert line.done(ForwardTask(STEP + 1, NEXT[1])) == [ForwardTask(STEP, NOW[1])]

    def test_one_of_the_next_step_at_a_time(self) -> None:
        assert DEPTH_AHEAD == 1 < WORKER_DEPTH
        line = Line()
        given = [task for m in NEXT[:4] for task in line.offer(m)]
        assert given == [ForwardTask(STEP + 1, NEXT[0])]
        assert line.done(given[0]) == [ForwardTask(STEP + 1, NEXT[1])]

    def test_behind_one_of_the_current_step_none(self) -> None:
        line = Line()
        assert line.offer(NOW[0]) == [ForwardTask(STEP, NOW[0])]
        assert line.offer(NEXT[0]) == []
        assert line.done(ForwardTask(STEP, NOW[0])) == [ForwardTask(STEP + 1, NEXT[0])]

    def test_while_the_round_applies_only_the_next_step(self) -> None:
        line = Line()
        line.made.close()
        assert line.offer(NOW[0]) == []
        assert line.offer(NEXT[0]) == [ForwardTask(STEP + 1, NEXT[0])]
        assert line.done(ForwardTask(STEP + 1, NEXT[0])) == []
        assert line.made.in_flight() == {NOW[0]}

    def test_never_the_step_after_the_next(self) -> None:
        line = Line()
        line.made.close()
        assert line.offer(AFTER_NEXT[0]) == []
        assert line.start_step(STEP + 1) == [ForwardTask(STEP + 2, AFTER_NEXT[0])]

    def test_the_last_stage_does_so_too(self) -> None:
        line = Line(stage=2)
        assert line.offer(NEXT[0]) == [LossTask(STEP + 1, NEXT[0])]
        assert not line.made.accumulating, "nothing that is added to the current gradient"


class TestStartingAStep:
    def begun(self) -> Line:
        """Microbatches of the next step: one done, one returned, one sent, one with the worker, one
        waiting."""
        line = Line()
        for microbatch in NEXT[:5]:
            line.offer(microbatch)
        for microbatch in NEXT[:3]:
            line.done(ForwardTask(STEP + 1, microbatch))
        assert tasks(line.gradient(NEXT[0])) == []
        assert line.done(ForwardTask(STEP + 1, NEXT[3])) == [BackwardTask(STEP + 1, NEXT[0])]
        assert line.done(BackwardTask(STEP + 1, NEXT[0])) == [ForwardTask(STEP + 1, NEXT[4])]
        assert tasks(line.gradient(NEXT[1])) == []
        return line

    def test_what_was_begun_ahead_is_kept(self) -> None:
        line = self.begun()
        assert line.made.done() == line.made.in_flight() == set()
        assert line.made.done(STEP + 1) == {NEXT[0]}
        assert line.start_step(STEP + 1) == [BackwardTask(STEP + 1, NEXT[1])], "it was returned"
        assert line.made.done() == {NEXT[0]}
        assert line.made.in_flight() == set(NEXT[1:5])
        assert line.made.loss_sum(frozenset({NEXT[0]})) == 1.0

    def test_and_goes_on(self) -> None:
        line = self.begun()
        line.start_step(STEP + 1)
        line.done(ForwardTask(STEP + 1, NEXT[4]))
        line.done(BackwardTask(STEP + 1, NEXT[1]))
        for microbatch in NEXT[2:5]:
            assert tasks(line.gradient(microbatch)) == [BackwardTask(STEP + 1, microbatch)]
            line.done(BackwardTask(STEP + 1, microbatch))
        assert line.made.done() == set(NEXT[:5])
        assert line.made.in_flight() == set()

    def test_a_repeated_boundary_of_what_is_done_begins_nothing(self) -> None:
        line = self.begun()
        line.start_step(STEP + 1)
        again = line.forward(NEXT[0])
        assert verdicts(again) == ["known"]
        assert any(isinstance(e, SendPayload) and e.peer == BEFORE for e in again)
        assert tasks(again) == []
        assert line.made.done() == {NEXT[0]}

    def test_a_task_of_the_closed_step_that_ends_now_counts_nowhere(self) -> None:
        line = Line()
        line.offer(NOW[0])
        line.offer(NEXT[0])
        line.start_step(STEP + 1)
        assert line.done(ForwardTask(STEP, NOW[0])) == []
        assert NOW[0] not in line.made.done(STEP) | line.made.in_flight(STEP)
        assert line.made.in_flight() == {NEXT[0]}


class TestMessages:
    def test_a_gradient_of_the_next_step_is_taken(self) -> None:
        line = Line()
        line.offer(NEXT[0])
        line.done(ForwardTask(STEP + 1, NEXT[0]))
        effects = line.gradient(NEXT[0])
        assert [e.step for e in effects if isinstance(e, GradientAccepted)] == [STEP + 1]
        assert any(isinstance(e, Keep) for e in effects)
        assert tasks(effects) == [BackwardTask(STEP + 1, NEXT[0])]

    def test_one_of_the_step_after_it_is_not(self) -> None:
        line = Line()
        line.offer(AFTER_NEXT[0])
        [effect] = line.gradient(AFTER_NEXT[0])
        assert isinstance(effect, Penalise)

    @pytest.mark.parametrize(("delayed", "early"), [(True, 2), (False, 1)])
    def test_boundaries_are_kept_one_step_beyond_what_is_computed(
        self, delayed: bool, early: int
    ) -> None:
        for ahead in range(early + 1):
            line = Line(delayed=delayed)
            assert line.verdict(ids(STEP + ahead)[0]) == "accepted"
            assert line.made.in_flight(STEP + ahead) == {ids(STEP + ahead)[0]}
        line = Line(delayed=delayed)
        assert line.verdict(ids(STEP + early + 1)[0]) == "stale"
        assert line.verdict(ids(STEP - 1)[0]) == "stale"
        assert line.made.empty


class TestLeases:
    def test_the_next_step_may_be_leased(self) -> None:
        line = Line(stage=0)
        given = tasks(line.made.lease(list(NEXT[:2]), again=False, now=0.0))
        assert given == [ForwardTask(STEP + 1, NEXT[0])]
        assert line.made.in_flight(STEP + 1) == set(NEXT[:2])
        assert line.made.in_flight() == set()

    def test_one_that_we_have_is_not_begun_again(self) -> None:
        line = Line(stage=0)
        line.made.lease([NEXT[0]], again=False, now=0.0)
        line.done(ForwardTask(STEP + 1, NEXT[0]))
        assert tasks(line.made.lease([NEXT[0]], again=True, now=0.0)) == []

    @pytest.mark.parametrize(
        ("delayed", "step"), [(False, STEP + 1), (True, STEP + 2), (True, STEP - 1)]
    )
    def test_no_other_step(self, delayed: bool, step: int) -> None:
        line = Line(stage=0, delayed=delayed)
        assert line.made.lease(list(ids(step)), again=False, now=0.0) == []
        assert line.made.empty

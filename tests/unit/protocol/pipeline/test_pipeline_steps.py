"""Boundaries of the next step are kept until it begins, and closed steps not without end."""

import pytest

from protocol.pipeline.effects import DropStep, ForwardTask, Outcome
from protocol.pipeline.pipeline import WORKER_DEPTH
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Receipt
from tests.support.effects import sent, tasks
from tests.support.pipelines import ME, PER_STEP, STEP, A, C, Line


def ids(step: int) -> range:
    return range(step * PER_STEP, (step + 1) * PER_STEP)


NOW, NEXT, AFTER_NEXT = ids(STEP), ids(STEP + 1), ids(STEP + 2)


def test_the_worker_gets_the_next_step_when_it_begins() -> None:
    line = Line()
    assert tasks(line.forward(NEXT[0])) == []
    line.made.close()
    assert tasks(line.forward(NEXT[1])) == []
    assert tasks(line.forward(NEXT[2])) == []
    assert line.made.in_flight() == set()
    begun = tasks(line.made.start_step(STEP + 1, 0.0))
    assert begun == [ForwardTask(STEP + 1, m) for m in NEXT[:WORKER_DEPTH]]
    assert line.made.in_flight() == set(NEXT[:3])


def test_while_a_step_is_closed_the_worker_gets_nothing_of_it() -> None:
    line = Line()
    line.made.close()
    assert tasks(line.forward(NOW[0])) == []
    assert line.made.waiting == 0
    assert line.made.in_flight() == {NOW[0]}


def test_a_task_of_the_closed_step_that_ends_now_counts_nowhere() -> None:
    line = Line()
    tasks(line.forward(NOW[0]))
    tasks(line.forward(NEXT[0]))
    assert tasks(line.made.start_step(STEP + 1, 0.0)) == [ForwardTask(STEP + 1, NEXT[0])]
    assert tasks(line.made.computed(ForwardTask(STEP, NOW[0]), Outcome(), 0.0)) == []
    assert line.made.done() == set()
    assert line.made.in_flight() == {NEXT[0]}


def verdict(line: Line, microbatch: int) -> str:
    return "".join(receipt.verdict for _, receipt in sent(line.forward(microbatch), Receipt))


def test_boundaries_are_kept_one_step_beyond_the_current_one() -> None:
    line = Line()
    assert verdict(line, NEXT[0]) == "", "it is taken"
    assert verdict(line, AFTER_NEXT[0]) == "busy"
    assert verdict(line, ids(STEP - 1)[0]) == "busy"


@pytest.mark.parametrize("step", [STEP - 1, STEP + 1])
def test_no_other_step_is_leased(step: int) -> None:
    line = Line(stage=0)
    assert line.made.lease(list(ids(step)), again=False, now=0.0) == []
    assert line.made.empty


def dropped(line: Line, step: int, before: int | None, after: int | None) -> list[int]:
    """The steps that are dropped at a view of the stages beside ours; None: nobody is there."""
    seen = ((A, before), (ME, step), (C, after))
    view = SwarmView.of([[Replica(p, v, True)] if v is not None else [] for p, v in seen])
    effects = line.made.update_view(view, float(step))
    return [effect.step for effect in effects if isinstance(effect, DropStep)]


@pytest.mark.parametrize("unseen", ["before", "after", "both", "left behind"])
def test_steps_are_dropped_though_a_stage_beside_ours_is_out_of_sight(unseen: str) -> None:
    """We have set all of it aside, and our siblings go on with it."""
    line, found = Line(), list[int]()
    for step in range(STEP, STEP + 20):
        before = None if unseen in ("before", "both") else step
        after = None if unseen in ("after", "both") else 0 if unseen == "left behind" else step
        found += dropped(line, step, before, after)
        for microbatch in ids(step):
            line.forward(microbatch)
        assert len(line.made._microbatches) <= 2 * PER_STEP
        line.made.start_step(step + 1, float(step))
    assert found == list(range(STEP, STEP + 18))


@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_stage_beside_ours_has_yet_to_close_is_kept(lag: int) -> None:
    line = Line()
    line.made.step = STEP + 1
    assert dropped(line, STEP + 1, STEP + 1 - lag, STEP + 1) == [STEP][lag:]

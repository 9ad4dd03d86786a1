"""The payloads of tasks: where data is packed, every stage after the first gets the tokens."""

import pytest

from client.train.workers.tasks import results, sources
from protocol.pipeline.effects import (
    BackwardTask,
    ContributeTask,
    ForwardTask,
    LossTask,
    PassTask,
    PayloadKey,
    ReduceTask,
    Task,
)
from protocol.pipeline.place import Place
from tests.support.protocol_examples import peer

FIRST, MIDDLE, LAST = range(3)
ME, OTHER = peer(0), peer(1)


def place(stage: int, *, packed: bool = False, stages: int = 3) -> Place:
    return Place(ME, stage, stages, 4, packed)


def names(task: Task, at: Place) -> list[str]:
    return [key.name if key else "" for key in sources(task, at)]


@pytest.mark.parametrize("microbatch", [9, -3])
def test_a_stage_in_between_gets_the_borders(microbatch: int) -> None:
    for task in (ForwardTask(5, microbatch), PassTask(5, microbatch, "loss")):
        assert names(task, place(FIRST, packed=True)) == []  # it reads them
        assert names(task, place(MIDDLE)) == ["input"]
        assert names(task, place(MIDDLE, packed=True)) == ["input", "tokens"]
    for task in (BackwardTask(5, microbatch), PassTask(5, microbatch, "less")):
        assert names(task, place(FIRST, packed=True)) == ["grad_in"]
        assert names(task, place(MIDDLE)) == ["grad_in", "input"]
        assert names(task, place(MIDDLE, packed=True)) == ["grad_in", "input", "tokens"]


def test_a_pass_back_of_a_kept_graph_takes_the_gradient_alone() -> None:
    for stage in (FIRST, MIDDLE):
        keys = sources(BackwardTask(5, 9), place(stage, packed=True), graph_kept=True)
        assert keys == (PayloadKey(5, "grad_in", 9),)


@pytest.mark.parametrize("packed", [False, True])
def test_the_last_stage_gets_the_tokens_always(packed: bool) -> None:
    for task in (LossTask(5, 9), PassTask(5, 9, "less"), PassTask(5, 9, "loss")):
        assert names(task, place(LAST, packed=packed)) == ["input", "tokens"]
        assert names(task, place(FIRST, packed=packed, stages=1)) == []


def test_an_auditor_recomputes_with_what_it_was_shown() -> None:
    shown = tuple(PayloadKey(5, name, 9) for name in ("grad_in", "input", "tokens", "output"))
    assert sources(PassTask(5, 9, "audit", shown), place(MIDDLE)) == shown


def test_our_own_part_of_a_sum_is_the_workers() -> None:
    ours, theirs = (PayloadKey(5, "segment", 1, 2, one) for one in (ME, OTHER))
    task = ReduceTask(5, 2, 1, (ours, theirs), (1, 1))
    assert sources(task, place(LAST)) == (theirs,)
    assert results(task, place(LAST)) == (PayloadKey(5, "reduced", 1, 2, ME),)
    sent = PayloadKey(5, "reduced", 1, 2, OTHER)
    again = ReduceTask(5, 2, 1, (ours, theirs), (1, 1), compare_to=sent)
    assert sources(again, place(LAST)) == (ours, theirs, sent)
    assert results(again, place(LAST)) == ()


def test_what_a_pass_yields_is_what_the_neighbours_need() -> None:
    def yields(task: Task, stage: int) -> list[str]:
        return [key.name for key in results(task, place(stage))]

    assert yields(ForwardTask(5, 9), FIRST) == ["output", "tokens"]
    assert yields(ForwardTask(5, 9), MIDDLE) == ["output"]
    assert yields(PassTask(5, -1, "loss"), LAST) == yields(PassTask(5, 9, "less"), MIDDLE) == []
    assert yields(BackwardTask(5, 9), FIRST) == []
    assert yields(BackwardTask(5, 9), MIDDLE) == yields(LossTask(5, 9), LAST) == ["grad_out"]
    assert yields(ContributeTask(5, 1, (0, 3, 7)), LAST) == ["segment", "segment"]

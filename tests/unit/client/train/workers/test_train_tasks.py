"""Tasks as requests: where data is packed, every stage after the first gets the tokens."""

from __future__ import annotations

import pytest

from client.train.workers.tasks import SeatConstants, to_call
from protocol.pipeline.effects import (
    BackwardTask,
    ForwardTask,
    LossTask,
    PassTask,
    PayloadKey,
    Task,
)
from tests.support.protocol_examples import peer

FIRST, MIDDLE, LAST = (True, False), (False, False), (False, True)
TOKENS = PayloadKey(5, "tokens", 9)


def tokens_of(task: Task, place: tuple[bool, bool], *, packed: bool) -> PayloadKey | None:
    return to_call(task, SeatConstants(peer(0), *place, 64, packed)).tokens


@pytest.mark.parametrize("task", [ForwardTask(5, 9), BackwardTask(5, 9), PassTask(5, 9, "less")])
def test_a_stage_in_between_gets_the_borders(task: Task) -> None:
    assert tokens_of(task, FIRST, packed=True) is None  # they are its input, or it reads them
    assert tokens_of(task, MIDDLE, packed=True) == TOKENS
    assert tokens_of(task, MIDDLE, packed=False) is None


@pytest.mark.parametrize("packed", [False, True])
def test_the_last_stage_gets_the_tokens_always(packed: bool) -> None:
    for task in (LossTask(5, 9), PassTask(5, 9, "less")):
        assert tokens_of(task, LAST, packed=packed) == TOKENS


def test_borders_of_held_out_microbatches_are_theirs() -> None:
    task = PassTask(5, -3, "loss")
    held_out = PayloadKey(5, "tokens", -3)
    assert tokens_of(task, FIRST, packed=True) is None
    assert tokens_of(task, MIDDLE, packed=True) == held_out
    assert tokens_of(task, MIDDLE, packed=False) is None
    assert tokens_of(task, LAST, packed=False) == held_out


def test_an_auditor_recomputes_with_the_borders_that_it_was_shown() -> None:
    names = ("grad_in", "input", "tokens", "output", "grad_out")
    shown = tuple(PayloadKey(5, name, 9) for name in names)
    call = to_call(PassTask(5, 9, "audit", shown), SeatConstants(peer(0), *MIDDLE, 64, True))
    assert call.tokens == TOKENS
    assert call.sources == tuple(key for key in shown if key.name != "tokens")

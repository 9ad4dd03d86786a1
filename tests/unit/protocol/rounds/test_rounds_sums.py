"""Sums that owners broadcast: decoded before a member says Ready, refused if they are none."""

from __future__ import annotations

import pytest

from protocol.pipeline.effects import ContributeTask, DecodeTask, Fault, Outcome, PayloadKey
from protocol.rounds.plans import REFUSED
from protocol.wire.messages import Ready, Reduced, Segment
from tests.support.round_members import (
    LEADER,
    ME,
    STAGE,
    STEP,
    B,
    C,
    Table,
    blamed,
    digest,
    exchanging,
    plan,
    sent,
    tasks,
)


def test_a_sum_is_decoded_before_anybody_relies_on_it() -> None:
    table, _ = exchanging()
    [reduce] = tasks(table.member.segment(B, Segment(STAGE, STEP, 1, 0)))
    table.member.computed(reduce, Outcome(sq_norm=2.0, digests=(digest(1),)))
    effects = table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
    key = PayloadKey(STEP, "reduced", 1, 1, B)
    assert tasks(effects) == [DecodeTask(STEP, 1, 1, key, 3.0)]
    assert not table.member.ready


def test_a_malformed_sum_costs_an_attempt_and_its_owner_is_blamed() -> None:
    table, _ = exchanging()
    effects = table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
    [task] = tasks(effects)
    effects = table.member.computed(task, Outcome(error="codec", part=0))
    assert sent(effects, Ready) == [(LEADER, Ready(STAGE, STEP, 1, REFUSED, 0.0))]
    assert blamed(effects) == [(B, "malformed-sum")]
    assert not any(isinstance(effect, Fault) for effect in effects)
    [again] = tasks(table.member.plan(C, plan({ME: {8, 9}, B: {10, 11}}, attempt=2)))
    assert isinstance(again, ContributeTask)


@pytest.mark.parametrize("error", ["oom", "gone", "internal"])
def test_a_sum_that_we_cannot_decode_is_nobody_elses_fault(error: str) -> None:
    table, _ = exchanging()
    effects = table.member.reduced(B, Reduced(STAGE, STEP, 1, 1, 3.0), digest(2))
    [task] = tasks(effects)
    [fault] = table.member.computed(task, Outcome(error=error))
    assert isinstance(fault, Fault)


def test_who_observes_applies_without_a_word() -> None:
    """It does not influence whether the round is repeated."""
    table = Table()
    table.member.plan(LEADER, plan({B: {8, 9}, C: {10, 11}}, observers=[ME]))
    for peer, segment in ((B, 0), (C, 1)):
        message = Reduced(STAGE, STEP, 1, segment, 3.0)
        assert tasks(table.member.reduced(peer, message, digest(2))) == []

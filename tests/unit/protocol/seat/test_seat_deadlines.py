"""What a seat waits for within a step: the newest plan, and shares that were lost."""

from __future__ import annotations

import pytest

from protocol.effects import Send
from protocol.pipeline.place import Place
from protocol.rounds.leader import RESEND_S
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Plan, Returned
from protocol.wire.parts import PlanMember
from tests.support.decrees import commit_of, promised_by
from tests.support.protocol_examples import peer

ME, LEADER, NEXT, BEFORE = (peer(n) for n in (1, 2, 3, 4))
STAGE, STEP = 1, 3


@pytest.fixture
def seat() -> Seat:
    place = Place(ME, STAGE, 2, 4)
    made = Seat(place, size=384, steps=99, tokens_per_step=1, step=STEP, serving=True)
    made.allow_training(0.0)
    ours = [Replica(member, STEP, True) for member in (ME, LEADER, NEXT)]
    made.update_view(SwarmView.of([[Replica(BEFORE, STEP, True)], ours]), 0.0)
    return made


def plan(attempt: int) -> Plan:
    members = [PlanMember(each, b"\x00") for each in (ME, NEXT)]
    members.append(PlanMember(LEADER, b"\x0f"))
    return Plan(STAGE, STEP, attempt, members, [0, 128, 256, 384], [], promises=promised_by(ME))


@pytest.mark.parametrize("late", [2, 3])
def test_an_older_plan_that_comes_late_does_not_displace_a_newer_one(seat: Seat, late: int) -> None:
    """Neither may be followed before the stage before has got the gradients."""
    for attempt in (5 - late, late):
        seat.receive(LEADER if attempt == 2 else NEXT, plan(attempt), 0.1)
    assert seat.member.plan_followed is None
    seat.receive(BEFORE, Returned(STAGE, STEP), 0.2)
    assert seat.member.plan_followed == plan(3)


def test_shares_are_asked_for_when_it_is_time_to(seat: Seat) -> None:
    commit = commit_of(STAGE, STEP, 2, b"d" * 32, [ME])
    lost = [Send(NEXT, commit)]
    seat.member.ask_for_shares = lambda _: lost  # type: ignore[method-assign]
    assert lost[0] not in seat.receive(LEADER, commit, 0.1), "they may be on their way"
    due = seat.next_deadline() or 0.0
    while due < 0.1 + RESEND_S:
        assert lost[0] not in seat.tick(due)
        due = seat.next_deadline() or 0.0
    assert due == 0.1 + RESEND_S
    assert lost[0] in seat.tick(due)
    seat.member.ask_for_shares = lambda *_: []  # type: ignore[method-assign]
    seat.tick(due + RESEND_S)
    assert (seat.next_deadline() or 9.0) > due + RESEND_S, "nothing is lacking"

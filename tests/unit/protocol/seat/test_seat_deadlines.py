"""What a seat waits for within a step: the newest plan."""

import pytest

from protocol.pipeline.place import Place
from protocol.seat.seat import Seat
from protocol.wire.messages import Plan
from protocol.wire.parts import PlanMember
from tests.support.decrees import promised_by
from tests.support.protocol_examples import peer
from tests.support.seats import seat_of, view_of

ME, LEADER, NEXT, BEFORE = (peer(n) for n in (1, 2, 3, 4))
STAGE, STEP = 1, 3
OURS = (ME, LEADER, NEXT)


@pytest.fixture
def seat() -> Seat:
    place = Place(ME, STAGE, 2, 4)
    made = seat_of(place, STEP, size=384)
    made.update_view(view_of(STEP, [BEFORE], OURS), 0.0)
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
    seat.update_view(view_of(STEP, [BEFORE], OURS, returned=[BEFORE]), 0.2)
    assert seat.member.plan_followed == plan(3)

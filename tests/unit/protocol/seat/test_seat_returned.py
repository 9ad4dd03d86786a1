"""Whether the stage before has all gradients of a step: what counts."""

import pytest

from protocol.pipeline.place import Place
from protocol.seat.effects import StatusChanged
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import LedgerReport, Plan
from protocol.wire.parts import PlanMember
from tests.support.decrees import promised_by
from tests.support.protocol_examples import peer
from tests.support.seats import seat_of, view_of

ME, SIBLING, BEFORE, OTHER, THIRD = (peer(n) for n in range(1, 6))
PER_STEP, STEP = 4, 3


PEERS = BEFORE, OTHER, THIRD


@pytest.mark.parametrize(
    ("before", "told", "proven", "enough"),
    [
        ((STEP,), 0, True, False),
        ((STEP,), 1, True, True),
        ((STEP - 1,), 1, True, False),  # it speaks of an earlier step
        ((STEP + 1, STEP), 0, True, True),  # who has closed the step had all of them
        ((STEP, STEP, STEP), 1, True, False),  # alone it may lie, and a friend of it be here
        ((STEP, STEP, STEP), 2, True, True),
        ((STEP + 1, STEP, STEP), 0, True, False),
        ((STEP, STEP + 1, STEP), 1, True, True),
        ((STEP, STEP, STEP), 1, False, True),  # or newcomers would stop a stage of theirs
        ((), 0, True, True),
    ],
)
def test_what_the_stage_before_has_to_say(
    before: tuple[int, ...], told: int, proven: bool, enough: bool
) -> None:
    there = [
        Replica(PEERS[n], version, True, returned=n < told) for n, version in enumerate(before)
    ]
    made = seat_of(Place(ME, 1, 2, PER_STEP), STEP, proves=None if proven else lambda _peer: False)
    made.update_view(SwarmView.of([there, [Replica(ME, STEP, True)]]), 0.0)
    reason = "" if enough else "the stage before has not got all gradients of the step yet"
    assert made._is_returned().reason == reason


@pytest.mark.parametrize("late", [2, 3])
def test_an_older_plan_that_comes_late_does_not_displace_a_newer_one(late: int) -> None:
    """Neither may be followed before the stage before has got the gradients."""
    made, ours = seat_of(Place(ME, 1, 2, PER_STEP), STEP, size=384), (ME, SIBLING, OTHER)
    made.update_view(view_of(STEP, [BEFORE], ours), 0.0)
    counted = [PlanMember(p, b"\x0f" if p == OTHER else b"\x00") for p in ours]
    plans = {
        attempt: Plan(1, STEP, attempt, counted, [0, 128, 256, 384], [], promises=promised_by(ME))
        for attempt in (5 - late, late)
    }
    for attempt, said in plans.items():
        made.receive(OTHER if attempt == 2 else SIBLING, said, 0.1)
    assert made.member.plan_followed is None
    made.update_view(view_of(STEP, [BEFORE], ours, returned=[BEFORE]), 0.2)
    assert made.member.plan_followed == plans[3]


@pytest.fixture
def seat() -> Seat:
    made = seat_of(Place(ME, 0, 2, PER_STEP), STEP)
    made.update_view(SwarmView.of([[Replica(p, STEP, True) for p in (ME, SIBLING)], []]), 0.0)
    return made


def test_whoever_knows_the_ledgers_to_be_whole_says_so_at_once(seat: Seat) -> None:
    said = LedgerReport(0, STEP, 1, b"\x07", b"", 0)
    assert StatusChanged() not in seat.receive(SIBLING, said, 0.1)
    assert not seat.status(1.0).returned
    said = LedgerReport(0, STEP, 2, b"\x0f", b"", 0)
    assert StatusChanged() in seat.receive(SIBLING, said, 0.2)
    assert seat.status(1.0).returned
    assert StatusChanged() not in seat.tick(0.3), "it is told already"

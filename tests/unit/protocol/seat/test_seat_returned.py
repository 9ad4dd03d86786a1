"""Whether the stage before has all gradients of a step: what counts."""

import pytest

from protocol.pipeline.place import Place
from protocol.seat.effects import StatusChanged
from protocol.seat.returned import STEPS, ReturnedSteps
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import LedgerReport, Plan
from protocol.wire.parts import PlanMember
from tests.support.decrees import promised_by
from tests.support.protocol_examples import peer
from tests.support.seats import seat_of, view_of

ME, SIBLING, BEFORE, OTHER, THIRD = (peer(n) for n in range(1, 6))
PER_STEP, STEP = 4, 3


def view(*before: int, stage: int = 1, returned: bool = False) -> SwarmView:
    """The replicas of the stage before are at these versions; the first one has all gradients."""
    peers = zip((BEFORE, OTHER, THIRD), before, strict=False)
    there = [Replica(p, at, True, returned=returned and p == BEFORE) for p, at in peers]
    return SwarmView.of([*[there] * stage, [Replica(ME, STEP, True)]])


def steps(*told: int, stage: int = 1, proven: bool = True) -> ReturnedSteps:
    made = ReturnedSteps(stage, lambda _peer: proven)
    for step in told:
        made.observe(view(step, returned=True), STEP)
    return made


class TestReturnedSteps:
    def test_one_replica_of_the_stage_before_tells(self) -> None:
        refused = steps(STEP - 1).has(view(STEP), STEP)
        assert refused.reason == "the stage before has not got all gradients of the step yet"
        assert steps(STEP).has(view(STEP), STEP)
        assert steps(STEP, STEP - 1).has(view(STEP), STEP), "it was so"

    def test_where_more_are_proven_two_tell(self) -> None:
        """One of them alone may lie, and a friend behind it return no gradient."""
        of_three = view(STEP, STEP, STEP)
        assert not steps(STEP).has(of_three, STEP)
        assert steps(STEP, proven=False).has(of_three, STEP), "or newcomers would stop it"
        made = steps(STEP)
        both = [Replica(p, STEP, True, returned=p != THIRD) for p in (BEFORE, OTHER, THIRD)]
        made.observe(SwarmView.of([both, []]), STEP)
        assert made.has(of_three, STEP)

    def test_most_have_closed_the_step(self) -> None:
        past = STEP + 1
        assert not steps().has(view(past, STEP), STEP), "half are not most"
        assert steps().has(view(past, past, STEP), STEP)

    def test_nobody_to_wait_for(self) -> None:
        assert steps().has(view(), STEP)
        assert steps(stage=0).has(view(stage=0), STEP), "the first stage has none before it"

    def test_what_came_early_counts_and_what_is_far_ahead_does_not(self) -> None:
        early = steps(STEP + STEPS - 1, STEP)
        assert early.has(view(STEP), STEP + STEPS - 1), "it implies the steps before"
        assert not early.has(view(STEP), STEP + STEPS)
        assert not steps(STEP + STEPS).has(view(STEP), STEP)


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

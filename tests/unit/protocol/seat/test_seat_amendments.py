"""A seat and the founder's amendments: what it follows, passes on, and refuses."""

from __future__ import annotations

import pytest
from msgspec import structs

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol.agreed import AgreedAmendment, AgreedList
from protocol.amendments.amendment import digest_of
from protocol.amendments.book import Amendments
from protocol.pipeline.place import Place
from protocol.seat.effects import AgreedOn
from protocol.seat.seat import Seat
from protocol.wire.messages import Plan
from protocol.wire.parts import PlanMember
from tests.support.amended_runs import Run, amendment
from tests.support.decrees import promised_by
from tests.support.protocol_examples import SWARM, peer
from tests.support.seats import alone, closes, seat_of, view_of

ME, LEADER, BEFORE = (peer(n) for n in (1, 2, 4))
STAGE, STEP = 1, 3
RUN = Run(OptimizerSpec(lr=1e-3), 100, 2)
ONE = amendment(RUN, SWARM, lr=5e-3)
NAMED = (AgreedAmendment(digest_of(ONE), STEP),)
LATER = (AgreedAmendment(digest_of(ONE), STEP + 4),)


@pytest.fixture
def book() -> Amendments:
    return Amendments(RUN, SWARM)


@pytest.fixture
def seat(book: Amendments) -> Seat:
    made = seat_of(Place(ME, STAGE, 2, 4), STEP, size=384, steps=100, amendments=book)
    made.quorum.settle([ME, LEADER], [ME, LEADER], STEP, 0.0)
    made.agreeing._sure = True  # it has closed steps
    made.update_view(view_of(STEP, [BEFORE], [ME, LEADER], returned=[BEFORE]), 0.0)
    return made


def plan(amended: AgreedList, attempt: int = 1) -> Plan:
    """A plan in which the leader has counted everything."""
    members = [PlanMember(ME, b"\x00"), PlanMember(LEADER, b"\x0f")]
    promises = promised_by(ME, LEADER) if attempt > 1 else ()
    cut = [0, 256, 384]
    return Plan(STAGE, STEP, attempt, members, cut, [], amended=amended, promises=promises)


def follows(seat: Seat, amended: AgreedList, attempt: int = 1) -> bool:
    seat.receive(LEADER, plan(amended, attempt), 0.5)
    followed = seat.member.plan_followed
    return followed is not None and followed.attempt == attempt


def test_what_it_lacks_it_follows_once_it_hears_of_it(seat: Seat, book: Amendments) -> None:
    assert not follows(seat, NAMED)
    book.take(ONE)
    seat.amended(0.6)
    assert seat.member.plan_followed == plan(NAMED)


def test_a_leader_that_has_not_heard_of_it_is_followed(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    assert follows(seat, ())


@pytest.mark.parametrize("from_step", [0, STEP - 1, STEP + 1, 10**6])
def test_it_holds_from_the_step_at_which_it_is_agreed_on(
    seat: Seat, book: Amendments, from_step: int
) -> None:
    book.take(ONE)
    assert not follows(seat, (AgreedAmendment(digest_of(ONE), from_step),))
    assert follows(seat, NAMED, 2)


def test_what_is_agreed_on_is_neither_left_out_nor_put_off(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    seat.agreeing.settle(LATER)
    for attempt, named in ((1, ()), (2, NAMED)):
        assert not follows(seat, named, attempt)
        assert not seat.may_close()
    assert follows(seat, LATER, 3)


def test_who_begins_from_a_copy_takes_over_what_others_agreed_on(
    seat: Seat, book: Amendments
) -> None:
    book.take(ONE)
    seat.agreeing.agreed, seat.agreeing._sure = LATER, False
    assert not follows(seat, (AgreedAmendment(bytes(32), 0),))
    assert follows(seat, NAMED, 2)


def test_a_step_is_applied_with_the_rate_of_its_plan(book: Amendments) -> None:
    book.take(amendment(RUN, SWARM, from_step=STEP + 2, lr=5e-3))
    seat = alone(ME, STEP, steps=100, amendments=book)
    first = book.propose((), STEP)
    task, effects = closes(seat, first)
    assert task.rate is None  # it does not hold yet
    assert [e for e in effects if isinstance(e, AgreedOn)] == [AgreedOn(0, first)]
    assert book.agreed == first
    while seat.step < first[0].from_step:
        task, _ = closes(seat, first)
        assert task.rate is None or seat.step > first[0].from_step
    task, _ = closes(seat, first)
    changed = structs.replace(RUN.optimizer, lr=5e-3)
    assert task.rate == learning_rate(changed, first[0].from_step)


def test_a_longer_run_is_not_finished(book: Amendments) -> None:
    seat = alone(ME, 100, steps=100, amendments=book)
    assert seat.finished
    book.take(amendment(RUN, SWARM, steps=101))
    seat.amended(0.0)
    assert not seat.finished

"""A seat and the founder's amendments: what it follows, passes on, and refuses."""

import pytest
from msgspec import structs

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol.amendments.amendment import digest_of
from protocol.amendments.book import Amendments
from protocol.pipeline.place import Place
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
NAMED = digest_of(ONE)


@pytest.fixture
def book() -> Amendments:
    return Amendments(RUN, SWARM)


@pytest.fixture
def seat(book: Amendments) -> Seat:
    made = seat_of(Place(ME, STAGE, 2, 4), STEP, size=384, amendments=book)
    made.quorum.settle([ME, LEADER], [ME, LEADER], STEP, 0.0)
    made.update_view(view_of(STEP, [BEFORE], [ME, LEADER], returned=[BEFORE]), 0.0)
    return made


def plan(amended: bytes, attempt: int = 1) -> Plan:
    """A plan in which the leader has counted everything."""
    members = [PlanMember(ME, b"\x00"), PlanMember(LEADER, b"\x0f")]
    promises = promised_by(ME, LEADER) if attempt > 1 else ()
    cut = [0, 256, 384]
    return Plan(STAGE, STEP, attempt, members, cut, [], amended=amended, promises=promises)


def follows(seat: Seat, amended: bytes, attempt: int = 1) -> bool:
    seat.receive(LEADER, plan(amended, attempt), 0.5)
    followed = seat.member.plan_followed
    return followed is not None and followed.attempt == attempt


def test_what_it_lacks_it_follows_once_it_hears_of_it(seat: Seat, book: Amendments) -> None:
    assert not follows(seat, NAMED)
    book.take(ONE)
    seat.tick(0.6)
    assert seat.member.plan_followed == plan(NAMED)


def test_what_the_stage_goes_by_is_not_left_out(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    seat.amended = NAMED
    assert not follows(seat, b"")
    assert not seat.may_close()
    assert follows(seat, NAMED, 2)


def test_a_step_is_applied_with_the_rate_of_its_plan(book: Amendments) -> None:
    book.take(amendment(RUN, SWARM, from_step=STEP + 2, lr=5e-3))
    seat = alone(ME, STEP, amendments=book)
    rates = []
    for _ in range(3):
        task, _ = closes(seat, book.due(seat.step))
        rates.append(task.rate)
    changed = structs.replace(RUN.optimizer, lr=5e-3)
    assert rates == [None, None, learning_rate(changed, STEP + 2)]


def test_a_longer_run_is_not_finished(book: Amendments) -> None:
    seat = alone(ME, 100, amendments=book)
    assert seat.finished
    book.take(amendment(RUN, SWARM, steps=101))
    assert not seat.finished

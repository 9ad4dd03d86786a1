"""A seat and the founder's amendments: what it follows, passes on, and refuses."""

from __future__ import annotations

import pytest
from msgspec import structs

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate
from protocol.agreed import AgreedAmendment, AgreedList
from protocol.amendments.amendment import digest_of
from protocol.amendments.book import Amendments
from protocol.pipeline.effects import ApplyTask, Compute, Outcome
from protocol.pipeline.place import Place
from protocol.seat.effects import AgreedOn, SeatEffect
from protocol.seat.seat import Seat
from protocol.view import Replica, SwarmView
from protocol.wire.messages import Plan, Returned
from protocol.wire.parts import PlanMember
from tests.support.amended_runs import Run, amendment
from tests.support.decrees import commit_of, promised_by
from tests.support.protocol_examples import SWARM, peer

ME, LEADER, UPSTREAM, OTHER = (peer(n) for n in (1, 2, 4, 5))
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
    made = Seat(
        Place(ME, STAGE, 2, 4),
        size=384,
        steps=100,
        tokens_per_step=1,
        step=STEP,
        serving=True,
        amendments=book,
    )
    made.allow_training(0.0)
    made.quorum.settle([ME, LEADER], [ME, LEADER], STEP, 0.0)
    made.agreeing._sure = True  # it has closed steps
    return made


def told(seat: Seat, *lists: AgreedList, now: float = 0.0) -> list[SeatEffect]:
    """The replicas of the stage before have agreed on these, and got all gradients of the step."""
    both = zip((UPSTREAM, OTHER), lists, strict=True)
    before = [Replica(sender, STEP, True, amended=amended) for sender, amended in both]
    ours = [Replica(member, STEP, True) for member in (ME, LEADER)]
    effects = seat.update_view(SwarmView.of([before, ours]), now)
    for sender in (UPSTREAM, OTHER):
        effects += seat.receive(sender, Returned(STAGE, STEP), now)
    return effects


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
    told(seat, LATER, LATER)
    assert not follows(seat, LATER)
    book.take(ONE)
    seat.amended(0.6)
    assert seat.member.plan_followed == plan(LATER)


def test_it_waits_until_it_has_heard_what_the_leader_has_heard(
    seat: Seat, book: Amendments
) -> None:
    book.take(ONE)
    told(seat, (), LATER)
    assert not follows(seat, LATER)
    told(seat, LATER, LATER)
    assert seat.member.plan_followed == plan(LATER)


def test_nothing_holds_that_nobody_before_has_agreed_on(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    told(seat, (), ())
    assert not follows(seat, NAMED)
    assert follows(seat, (), 2)


def test_a_leader_that_leaves_it_out_is_not_followed(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    told(seat, NAMED, NAMED)
    assert not follows(seat, ())
    assert follows(seat, NAMED, 2)


def test_one_replica_of_two_keeps_no_stage_from_closing(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    told(seat, (), NAMED)
    assert follows(seat, ())


def test_invented_amendments_keep_no_stage_from_closing(seat: Seat, book: Amendments) -> None:
    book.take(ONE)
    lie = (AgreedAmendment(bytes(32), 0),)
    told(seat, lie, lie)
    assert follows(seat, ())


def alone(book: Amendments | None, step: int = STEP) -> Seat:
    made = Seat(
        Place(ME, 0, 1, 4),
        size=64,
        steps=100,
        tokens_per_step=1,
        step=step,
        serving=True,
        amendments=book,
    )
    made.update_view(SwarmView.of([[Replica(ME, step, True)]]), 0.0)
    made.quorum.settle([ME], [ME], step, 0.0)
    return made


def closes(seat: Seat, amended: AgreedList) -> tuple[ApplyTask, list[SeatEffect]]:
    """A replica that is alone follows its own plan and applies it."""
    mine = [PlanMember(ME, b"\x0f")]
    seat.pipeline.done = lambda: {  # type: ignore[method-assign]
        *range(4 * seat.step, 4 * seat.step + 4)
    }
    effects = list(seat.receive(ME, Plan(0, seat.step, 1, mine, [0, 64], [], amended=amended), 1.0))
    effects += seat.receive(
        ME, commit_of(0, seat.step, 1, seat.member.ready, [ME], loss_sum=1.0), 1.0
    )
    [task] = [e.task for e in effects if isinstance(e, Compute) and isinstance(e.task, ApplyTask)]
    return task, list(seat.computed(task, Outcome(hash="00" * 32), 1.0))


def test_a_step_is_applied_with_the_rate_of_its_plan(book: Amendments) -> None:
    book.take(ONE)
    seat = alone(book)
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
    seat = alone(book, step=100)
    assert seat.finished
    book.take(amendment(RUN, SWARM, steps=101))
    seat.amended(0.0)
    assert not seat.finished

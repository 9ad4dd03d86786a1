"""A member is expelled while its round is open: its contribution is in no sum from then on."""

from functools import partial

import pytest

from protocol.audit.charges import CHARGE, KIND, Charge, Charges
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain
from protocol.pace import LOST_S
from protocol.pipeline.effects import ContributeTask, DropStep
from protocol.pipeline.place import Place
from protocol.rounds.member import Progress
from protocol.seat.seat import Seat
from protocol.verdicts import Verdict
from protocol.wire.messages import Charged, Plan
from protocol.wire.parts import Decree, PlanMember
from tests.support.decrees import commit_of, promised_by
from tests.support.effects import tasks
from tests.support.protocol_examples import SWARM, peer, signer
from tests.support.seats import seat_of, view_of

ME, SIBLING, LIAR, UPSTREAM = (peer(n) for n in (1, 2, 3, 4))
NUMBER = {ME: 1, SIBLING: 2, LIAR: 3}
STAGE, STEP = 1, 3


@pytest.fixture
def seat() -> Seat:
    sign = partial(signer(1).sign, context=SWARM)
    audits = AuditTerms(0.1, bytes(32), sign, charges=Charges(SWARM))
    made = seat_of(Place(ME, STAGE, 2, 4), STEP, size=384, audits=audits)
    made.update_view(view_of(STEP, [UPSTREAM], NUMBER, returned=[UPSTREAM]), 0.0)
    made.quorum.settle(tuple(NUMBER), tuple(NUMBER), STEP, 0.0)
    return made


def plan(attempt: int, *, liar: bool) -> Plan:
    """A plan in which our siblings have counted the step, and we nothing."""
    members = [PlanMember(ME, b"\x00"), PlanMember(SIBLING, b"\x03" if liar else b"\x0f")]
    members += [PlanMember(LIAR, b"\x0c")] if liar else []
    bounds = [0, 128, 256, 384] if liar else [0, 256, 384]
    promises = promised_by(*NUMBER) if attempt > 1 else ()
    return Plan(STAGE, STEP, attempt, members, bounds, [], promises=promises)


CHARGED = Charge(STAGE, LIAR, STEP - 1, 1, "lies")
"""About the step before."""


def expel(seat: Seat) -> list[object]:
    """Two of the three members have charged the liar, we among them."""
    assert not any(isinstance(e, Verdict) for e in seat.charging.charge(CHARGED, 1.0))
    theirs = signer(2).sign(KIND, CHARGE.encode(CHARGED), SWARM)
    effects = seat.receive(SIBLING, Charged(STAGE, theirs), 2.0)
    assert [e.culprit for e in effects if isinstance(e, Verdict)] == [LIAR]
    return effects


def test_those_judge_who_were_members_of_the_decree_that_closed_the_step(seat: Seat) -> None:
    """Two of three would do now; of the five who closed the step with the liar they would not."""
    closed = commit_of(STAGE, CHARGED.step, CHARGED.attempt, b"d" * 32, [*NUMBER, peer(5), peer(6)])
    seat.elector.take(closed, checked=True)
    seat.charging.charge(CHARGED, 1.0)
    for author in (2, 5):
        assert LIAR not in seat.charging._terms.verdicts
        signed = signer(author).sign(KIND, CHARGE.encode(CHARGED), SWARM)
        seat.receive(peer(author), Charged(STAGE, signed), 2.0)
    assert LIAR in seat.charging._terms.verdicts


def contributes(effects: list[object]) -> list[int]:
    return [task.attempt for task in tasks(effects, ContributeTask)]


def test_the_open_attempt_is_given_up_and_one_without_it_is_followed(seat: Seat) -> None:
    assert contributes(seat.receive(SIBLING, plan(1, liar=True), 0.5)) == [1]
    words = [e.words for e in expel(seat) if isinstance(e, Explain)]
    assert any("is taken out" in said for said in words)
    assert seat.member.progress is Progress.WAITING
    assert seat.member.promised == 1, "an older plan is not followed either"
    assert contributes(seat.receive(SIBLING, plan(2, liar=False), 3.0)) == [2]


def test_no_later_plan_with_it_is_followed_whoever_leads(seat: Seat) -> None:
    """Its accomplice leads the step: it waits for us, and is named for the plan that we lack."""
    expel(seat)
    effects = seat.receive(SIBLING, plan(1, liar=True), 3.0)
    assert contributes(effects) == []
    assert seat.member.plan_followed is None
    assert contributes(seat.receive(SIBLING, plan(1, liar=False), 4.0)) == [1]


def test_the_plan_of_a_step_that_is_closed_is_followed_all_the_same(seat: Seat) -> None:
    """All were Ready for it: another attempt would be a second version of the step."""
    expel(seat)
    seat.member.committed(Decree(1, b"d" * 32, (), (), 0.0))
    assert contributes(seat.receive(SIBLING, plan(1, liar=True), 3.0)) == [1]


def test_what_is_kept_for_auditors_is_freed_once_its_time_is_over(seat: Seat) -> None:
    assert seat.showing.dropped(STEP - 2, None, 1.0) == []
    assert DropStep(STEP - 2) not in seat.tick(1.0 + LOST_S - 0.1)
    assert DropStep(STEP - 2) in seat.tick(1.0 + LOST_S)
    assert DropStep(STEP - 2) not in seat.tick(1.0 + 2 * LOST_S)

"""What a seat signs of its own contribution, and whose charges it answers with one of its own."""

from __future__ import annotations

import pytest

from protocol.audit.charges import CHARGE, KIND, Charge, Charges
from protocol.audit.commitment import KIND as COMMITMENT
from protocol.audit.commitment import STATEMENT, Statement, contents, root_of, tensors_of
from protocol.effects import Send
from protocol.pipeline.effects import Compute, KeepVersionTask, Outcome, PayloadKey
from protocol.pipeline.place import Place
from protocol.seat.auditing import Auditing, AuditTerms
from protocol.seat.effects import CommitTo, SignCharge
from protocol.wire.envelope import sign
from protocol.wire.messages import (
    AuditNotice,
    AuditReply,
    AuditRequest,
    AuditResult,
    Charged,
    Commitment,
    Plan,
)
from protocol.wire.parts import PlanMember
from tests.support.protocol_examples import SWARM, peer, signer

STAGE, STEP, ATTEMPT = 1, 7, 2
ME, SIBLING, THIRD = (peer(n) for n in (1, 2, 3))
OURS = Commitment(STAGE, STEP, ATTEMPT, b"o" * 32)


@pytest.fixture
def auditing() -> Auditing:
    terms = AuditTerms(
        budget=0.2, secret=bytes(32), coarse=False, swarm=SWARM, charges=Charges(SWARM)
    )
    return Auditing(Place(ME, STAGE, 3, 4), terms, 0, lambda stage: (ME, SIBLING, THIRD))


def test_a_segment_without_elements_is_not_signed(auditing: Auditing) -> None:
    members = [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c")]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 64, 64, 128], [])
    [commit] = auditing.contributed(plan, frozenset({28}))
    assert isinstance(commit, CommitTo)
    assert commit.peers == (SIBLING,)
    first, *rest = (PayloadKey(STEP, "segment", i, ATTEMPT, ME) for i in range(4))
    assert commit.segments == (first, None, None, rest[-1])


def charged_by(author: int, auditing: Auditing, root: bytes, reason: str = "lies") -> list[object]:
    """Return what it says to a charge against us."""
    body = CHARGE.encode(Charge(STAGE, ME, STEP, ATTEMPT, root, reason))
    message = Charged(STAGE, sign(signer(author), KIND, body, SWARM))
    return list(auditing.on_charged(peer(author), message, 1.0))


def test_who_charges_us_falsely_is_charged(auditing: Auditing) -> None:
    assert auditing.committed([SIBLING], OURS) == [Send(SIBLING, OURS)]
    [answer] = charged_by(2, auditing, OURS.root)
    assert isinstance(answer, SignCharge)
    charge = CHARGE.parse(answer.body)
    assert (charge.member, charge.reason, charge.root) == (SIBLING, "accuses", OURS.root)


@pytest.mark.parametrize(
    ("root", "reason"), [(b"x" * 32, "lies"), (b"", "lies"), (OURS.root, "fails")]
)
def test_a_charge_about_something_else_is_not_answered(
    auditing: Auditing, root: bytes, reason: str
) -> None:
    """Somebody may have signed another contribution in our name, or found that ours fails."""
    auditing.committed([SIBLING], OURS)
    assert charged_by(2, auditing, root, reason) == []


def test_nor_one_of_a_step_that_we_have_not_signed(auditing: Auditing) -> None:
    assert charged_by(2, auditing, OURS.root) == []


def judging(auditing: Auditing) -> tuple[bytes, list[object]]:
    """SIBLING audits THIRD and has found fault, so we audit it, too; return THIRD's list and what
    we do at first."""
    members = [PlanMember(each, bits) for each, bits in ((ME, b"\x01"), (SIBLING, b"\x02"))]
    counted = [*members, PlanMember(THIRD, b"\x0c")]
    plan = Plan(STAGE, STEP, ATTEMPT, counted, [0, 64, 128, 192], [])
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    [_, keep] = auditing.closing(plan)
    assert keep == Compute(KeepVersionTask(STEP))
    digests = tuple(bytes([n]) * 32 for n in range(len(tensors_of(first=False, last=False))))
    shown = contents({30: digests, 31: digests}, (b"s" * 32,) * 3)
    statement = Statement(STAGE, STEP, ATTEMPT, 0, root_of(shown))
    signed = sign(signer(3), COMMITMENT, STATEMENT.encode(statement), SWARM)
    said = Commitment(STAGE, STEP, ATTEMPT, statement.root, signed.signature)
    assert auditing.on_commitment(THIRD, said, 0.1) == []
    assert auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2) == []
    return shown, list(
        auditing.on_result(SIBLING, AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False), 0.3)
    )


def asked(effects: list[object]) -> list[tuple[str, int]]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [(m.name, m.item) for m in messages if isinstance(m, AuditRequest)]


def test_a_judge_asks_for_the_list_and_then_for_what_it_names(auditing: Auditing) -> None:
    shown, effects = judging(auditing)
    assert asked(effects) == [("list", 0)]
    tensor = AuditReply(STAGE, STEP, ATTEMPT, "boundary", 30)
    assert auditing.on_reply(THIRD, tensor, bytes(32), 0.4) == [], "not asked for yet"
    reply = AuditReply(STAGE, STEP, ATTEMPT, "list", 0)
    assert auditing.on_reply(SIBLING, reply, shown, 0.4) == [], "of another member"
    wanted = asked(list(auditing.on_reply(THIRD, reply, shown, 0.5)))
    assert {item for _, item in wanted} <= {30, 31}
    assert wanted

"""What a seat signs of its own contribution, what it audits, and whom it charges."""

from __future__ import annotations

import pytest

from protocol.audit.audit import ASK_AGAIN_S, PATIENCE_S
from protocol.audit.charges import CHARGE, KIND, Charge, Charges, verdict_of
from protocol.audit.commitment import KIND as COMMITMENT
from protocol.audit.commitment import PIECE, STATEMENT, Statement, contents, root_of, tensors_of
from protocol.audit.draw import NEW_TIMES, drawn
from protocol.audit.record import Grade, Record
from protocol.effects import Explain, Send
from protocol.ids import PeerId
from protocol.pipeline.effects import (
    Compute,
    DropStep,
    KeepVersionTask,
    Outcome,
    PayloadKey,
    SendPayload,
    SumAgainTask,
    UsualNormTask,
)
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.seat.auditing import (
    HEEDED,
    KEPT_S,
    KEPT_STEPS,
    PASS_FANOUT,
    PASS_TO_ALL_UP_TO,
    STANDBY_S,
    TELL_AGAIN_S,
    TELL_TIMES,
    Auditing,
    AuditTerms,
)
from protocol.seat.effects import Audited, CommitTo, Contradicted, Contributions, SignCharge
from protocol.seat.showing import AGAIN
from protocol.verdicts import Verdict, Verdicts
from protocol.view import Replica, SwarmView
from protocol.wire.envelope import sign
from protocol.wire.fields import Envelope
from protocol.wire.messages import (
    AuditNotice,
    AuditReply,
    AuditRequest,
    AuditResult,
    Charged,
    Commitment,
    Plan,
    Segment,
    Statements,
)
from protocol.wire.parts import PlanMember, VotedOut
from tests.support.protocol_examples import SWARM, peer, signer

STAGE, STEP, ATTEMPT = 1, 7, 2
ME, SIBLING, THIRD = (peer(n) for n in (1, 2, 3))
SEGMENTS = (b"s" * 32,) * 3
OURS = Commitment(STAGE, STEP, ATTEMPT, b"o" * 32)


@pytest.fixture
def auditing() -> Auditing:
    terms = AuditTerms(
        budget=0.2, secret=bytes(32), coarse=False, swarm=SWARM, charges=Charges(SWARM)
    )
    return Auditing(
        Place(ME, STAGE, 3, 4), terms, 0, lambda stage: (ME, SIBLING, THIRD), Commitments(ME)
    )


def test_a_segment_without_elements_is_not_signed(auditing: Auditing) -> None:
    members = [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c")]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 64, 64, 128], [])
    [commit] = auditing.contributed(plan, frozenset({28}))
    assert isinstance(commit, CommitTo)
    assert commit.peers == (SIBLING,)
    first, *rest = (PayloadKey(STEP, "segment", i, ATTEMPT, ME) for i in range(4))
    assert commit.segments == (first, None, None, rest[-1])


def test_a_step_counts_the_contributions_of_others_only(auditing: Auditing) -> None:
    """Ours is not one of those that a lie may be found in, and THIRD has done nothing."""
    ids = {ME: b"\x01", SIBLING: b"\x0c", peer(4): b"\x02", THIRD: b"\x00"}
    members = [PlanMember(member, held) for member, held in ids.items()]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 128, 192, 256], [])
    assert auditing.closing(plan, 1.0)[0] == Contributions(2)


def charged_by(author: int, auditing: Auditing, root: bytes, reason: str = "lies") -> list[object]:
    """Return what it says to a charge against us."""
    body = CHARGE.encode(Charge(STAGE, ME, STEP, ATTEMPT, root, reason))
    message = Charged(STAGE, sign(signer(author), KIND, body, SWARM))
    return list(auditing.on_charged(peer(author), message, 1.0))


def seen(*siblings: PeerId) -> SwarmView:
    return SwarmView.of([[], [Replica(each, STEP, True) for each in (ME, *siblings)], []])


def charge_of_third(author: int) -> Envelope:
    body = CHARGE.encode(Charge(STAGE, THIRD, STEP, ATTEMPT, b"r" * 32, "lies"))
    return sign(signer(author), KIND, body, SWARM)


class TestWhoIsToldOfCharges:
    """SIBLING comes, is on probation for a while, and counts again; THIRD was charged before."""

    def test_one_that_counts_again_has_been_told(self, auditing: Auditing) -> None:
        told = [Send(SIBLING, Charged(STAGE, charge_of_third(1)))]
        auditing.charged(charge_of_third(1), 0.0)
        assert auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 1.0) == told
        assert auditing.update_view(seen(), seen(), seen(SIBLING), 2.0) == []
        assert auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 62.0) == []

    def test_it_is_told_what_was_said_meanwhile(self, auditing: Auditing) -> None:
        auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 1.0)
        auditing.update_view(seen(), seen(), seen(SIBLING), 2.0)
        assert auditing.charged(charge_of_third(1), 3.0) == [], "nobody counts"
        said = auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 62.0)
        assert said == [Send(SIBLING, Charged(STAGE, charge_of_third(1)))]

    def test_one_that_was_away_is_a_newcomer(self, auditing: Auditing) -> None:
        auditing.charged(charge_of_third(1), 0.0)
        told = auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 1.0)
        auditing.update_view(seen(), seen(), seen(), 2.0)
        assert auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 3.0) == told

    def test_one_that_does_not_count_yet_is_told_when_it_does(self, auditing: Auditing) -> None:
        auditing.charged(charge_of_third(1), 0.0)
        assert auditing.update_view(seen(), seen(), seen(SIBLING), 1.0) == []
        assert len(auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 62.0)) == 1


def test_a_newcomer_is_told_who_was_expelled_before_our_process_was_started(
    auditing: Auditing,
) -> None:
    """Of those who have expelled THIRD none may be left that did not restart."""
    terms, charges = auditing._terms, (charge_of_third(1), charge_of_third(4))
    assert terms is not None
    verdicts = Verdicts()
    verdicts.add(verdict_of(VotedOut(STAGE, THIRD, charges)))
    terms.share(verdicts, 0.0)
    said = auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 1.0)
    assert said == [Send(SIBLING, Charged(STAGE, one)) for one in charges]
    assert auditing.verdicts(1.0) == [], "once"
    assert terms.open_charges() == {}


class TestWhoIsSuspected:
    """SIBLING charges THIRD."""

    def suspected(self, auditing: Auditing, *reasons: str, stage: int = STAGE) -> bool:
        terms = auditing._terms
        assert terms is not None
        for step, reason in enumerate(reasons):
            body = CHARGE.encode(Charge(stage, THIRD, step, 1, b"r" * 32, reason))  # type: ignore[arg-type]
            said = Charged(STAGE, sign(signer(2), KIND, body, SWARM))
            auditing.on_charged(SIBLING, said, 2.0 * step)
        return any(record.suspected for record in terms.records.values())

    def test_whom_another_member_charges(self, auditing: Auditing) -> None:
        assert self.suspected(auditing, "lies")

    def test_once_for_each_that_charges_it(self, auditing: Auditing) -> None:
        assert self.suspected(auditing, "fails")
        assert auditing._terms is not None
        auditing._terms.record(STAGE, THIRD).note(Grade.AGREES)
        assert not self.suspected(auditing, "lies", "other")

    def test_nobody_in_another_stage(self, auditing: Auditing) -> None:
        assert not self.suspected(auditing, "lies", stage=STAGE + 1)


@pytest.mark.parametrize(("reason", "out"), [("lies", True), ("sums", True), ("fails", False)])
def test_whom_we_have_found_out_ourselves_loses_a_dispute(
    auditing: Auditing, reason: str, out: bool
) -> None:
    """By others' words nobody does: anybody may charge its sibling, and hold it up then."""
    body = CHARGE.encode(Charge(STAGE, THIRD, STEP, ATTEMPT, b"r" * 32, reason))
    auditing.on_charged(SIBLING, Charged(STAGE, sign(signer(2), KIND, body, SWARM)), 1.0)
    assert auditing.found_out() == set()
    auditing.charged(sign(signer(1), KIND, body, SWARM), 1.0)
    assert auditing.found_out() == ({THIRD} if out else set())


def test_a_false_charge_is_one_word_of_its_stage(auditing: Auditing) -> None:
    auditing.committed([SIBLING], OURS)
    assert charged_by(2, auditing, OURS.root) == [], "no majority, and no charge in return"
    assert auditing.verdicts(2.0) == []


def test_an_auditor_that_missed_our_commitment_is_sent_it_again(auditing: Auditing) -> None:
    auditing.committed([SIBLING], OURS)
    asks = AuditRequest(STAGE, STEP, ATTEMPT, "commitment", 0)
    assert auditing.on_request(THIRD, asks, 1.0) == [Send(THIRD, OURS)]
    other = AuditRequest(STAGE, STEP, ATTEMPT + 1, "commitment", 0)
    assert auditing.on_request(THIRD, other, 1.0) == [], "of an attempt that we have not signed"


MEMBERS = [PlanMember(ME, b"\x01"), PlanMember(SIBLING, b"\x02"), PlanMember(THIRD, b"\x0c")]
PLAN = Plan(STAGE, STEP, ATTEMPT, MEMBERS, [0, 64, 128, 192], [])


def judging(auditing: Auditing) -> tuple[bytes, list[object]]:
    """SIBLING audits THIRD and has found fault, so we audit it, too; return THIRD's list and what
    we do at first."""
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    digests = tuple(bytes([n]) * 32 for n in range(len(tensors_of(first=False, last=False))))
    shown = contents({30: digests, 31: digests}, SEGMENTS)
    committed(auditing, shown)
    [_, keep] = auditing.closing(PLAN, 0.1)
    assert keep == Compute(KeepVersionTask(STEP))
    assert auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2) == []
    return shown, list(
        auditing.on_result(SIBLING, AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False), 0.3)
    )


def committed(auditing: Auditing, shown: bytes) -> None:
    """All have committed to the list that THIRD shows."""
    statement = Statement(STAGE, STEP, ATTEMPT, 0, root_of(shown), SEGMENTS)
    signed = sign(signer(3), COMMITMENT, STATEMENT.encode(statement), SWARM)
    said = Commitment(STAGE, STEP, ATTEMPT, statement.root, SEGMENTS, signed.signature)
    for member in (ME, SIBLING, THIRD):
        assert auditing.on_commitment(member, said, 0.1) == []


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


def test_a_member_that_shows_nothing_has_refused_and_people_read_so(auditing: Auditing) -> None:
    judging(auditing)
    effects = auditing.tick(0.3 + PATIENCE_S)
    [said] = [effect for effect in effects if isinstance(effect, Audited)]
    assert (said.stage, said.member, said.step, said.grade) == (STAGE, THIRD, STEP, Grade.REFUSED)
    [words] = [effect for effect in effects if isinstance(effect, Explain)]
    assert words.level == "warning"
    assert f"stage {STAGE}, step {STEP}" in words.words
    assert auditing._terms is not None
    assert auditing._terms.results == {"refused": 1}
    assert auditing.tick(0.4 + PATIENCE_S) == [], "once"


def test_an_audit_that_was_never_begun_has_no_result(auditing: Auditing) -> None:
    """The member leaves after a judge has kept the version and before it is called."""
    members = [PlanMember(each, b"\x01") for each in (ME, SIBLING, THIRD)]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 128, 192], [])
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    for member in (ME, SIBLING, THIRD):
        auditing.on_commitment(member, Commitment(STAGE, STEP, ATTEMPT, b"r" * 32, SEGMENTS), 0.0)
    auditing.closing(plan, 0.1)
    auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2)
    gone = SwarmView.of([[], [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)], []])
    assert auditing.update_view(gone, gone, gone, 0.3) == []
    assert auditing._terms is not None
    assert not auditing._terms.results


def test_of_two_replicas_nobody_can_decide_and_people_read_so() -> None:
    terms = AuditTerms(
        budget=1.0, secret=bytes(32), coarse=False, swarm=SWARM, charges=Charges(SWARM)
    )
    place = Place(ME, STAGE, 3, 4)
    auditing = Auditing(place, terms, 0, lambda stage: (ME, SIBLING), Commitments(ME))
    said: list[object] = []
    for step in range(3):  # a third refusal is a charge
        members = [PlanMember(ME, b"\x01"), PlanMember(SIBLING, b"\x02")]
        plan = Plan(STAGE, step, ATTEMPT, members, [0, 64, 128], [])
        for member in (ME, SIBLING):
            said_of = Commitment(STAGE, step, ATTEMPT, b"r" * 32, SEGMENTS[:2])
            auditing.on_commitment(member, said_of, 0.0)
        assert auditing.ready(plan, bytes(32)) == [], "there are no judges"
        [_, usual, keep] = auditing.closing(plan, 0.1)
        assert usual == Compute(UsualNormTask(step, (0, 64, 128), 1))
        assert keep == Compute(KeepVersionTask(step))
        auditing.computed(KeepVersionTask(step), Outcome(), 20.0 * step)
        said = list(auditing.tick(20.0 * step + PATIENCE_S))
    assert [effect for effect in said if isinstance(effect, SignCharge)]
    assert any("nobody can decide" in e.words for e in said if isinstance(e, Explain))


def test_what_an_auditor_asks_for_is_kept_however_quick_the_steps_are(auditing: Auditing) -> None:
    """Four quick steps passed while the auditor's worker was busy: an honest member had nothing
    left to show, and three such audits expelled it."""
    auditing.dropped(DropStep(0), 0.0)
    auditing.on_request(SIBLING, AuditRequest(STAGE, 0, 1, "list", 0), 0.1)
    gone = [auditing.dropped(DropStep(step), step / 10) for step in range(1, 12)]
    dropped = {effect.step for effects in gone for effect in effects}
    assert dropped == set(range(1, 8))
    for step in range(8, 12):
        auditing.on_request(SIBLING, AuditRequest(STAGE, step, 1, "list", 0), 2.0)
    later = [auditing.dropped(DropStep(step), 3.0) for step in range(12, 40)]
    left = 40 - len(dropped) - sum(map(len, later))
    assert left <= 2 * KEPT_STEPS, "bounded, whatever is asked for"


def test_few_steps_are_kept_because_they_were_asked_for_and_for_a_while(
    auditing: Auditing,
) -> None:
    def ask(step: int, now: float) -> None:
        auditing.on_request(SIBLING, AuditRequest(STAGE, step, 1, "list", 0), now)

    for step in range(KEPT_STEPS):
        auditing.dropped(DropStep(step), 0.0)
        ask(step, 0.0)
    for step in range(KEPT_STEPS, 2 * KEPT_STEPS):
        assert auditing.dropped(DropStep(step), 1.0) == []
    ask(KEPT_STEPS, 1.0)
    gone = auditing.dropped(DropStep(2 * KEPT_STEPS), 1.0)
    assert gone == [DropStep(KEPT_STEPS)], "as many as are kept had been asked for before"
    ask(2 * KEPT_STEPS, 0.5 + KEPT_S)
    gone = auditing.dropped(DropStep(2 * KEPT_STEPS + 1), 0.5 + KEPT_S)
    assert DropStep(0) in gone, "nobody has come back for it"


def test_a_greedy_auditor_is_not_shown_the_same_without_end(auditing: Auditing) -> None:
    members = [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c")]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 128], [])
    auditing.contributed(plan, frozenset({28, 29}))
    asked = AuditRequest(STAGE, STEP, ATTEMPT, "segment", 0)
    shown = sum(len(auditing.on_request(SIBLING, asked, n / 10)) for n in range(100))
    assert shown == 2 + AGAIN
    never = AuditRequest(STAGE, STEP, ATTEMPT, "segment", 5)
    assert auditing.on_request(SIBLING, never, 20.0) == [], "it has no such segment"
    auditing.dropped(DropStep(STEP), 20.0)
    assert auditing.on_request(SIBLING, asked, 21.0) == [], "as long as the step is kept"
    assert auditing.on_request(THIRD, asked, 21.0), "each asker by itself"


def commit_all(auditing: Auditing) -> None:
    for member in (ME, SIBLING, THIRD):
        auditing.on_commitment(member, Commitment(STAGE, STEP, ATTEMPT, b"r" * 32, SEGMENTS), 0.0)


OWNER_ONLY = Plan(
    STAGE,
    STEP,
    ATTEMPT,
    [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c"), PlanMember(THIRD, b"\x00")],
    [0, 64, 128, 192],
    [],
)


def checking(auditing: Auditing) -> list[object]:
    """SIBLING finds fault with the sum of THIRD's segment, so we make it again, too."""
    shown = contents({}, SEGMENTS)
    committed(auditing, shown)
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD, 2), 0.0)
    [_, usual, keep] = auditing.closing(OWNER_ONLY, 0.1)
    task = UsualNormTask(STEP, (0, 64, 128, 192), 2)
    assert (usual, keep) == (Compute(task), Compute(KeepVersionTask(STEP)))
    assert auditing.computed(task, Outcome(sq_norm=0.5), 0.2) == []
    assert auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2) == []
    auditing.on_result(SIBLING, AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False), 0.3)
    reply = AuditReply(STAGE, STEP, ATTEMPT, "list", 0)
    return list(auditing.on_reply(THIRD, reply, shown, 0.3))


def shown_by(auditing: Auditing, sender: int, whose: int | None) -> list[object]:
    of = None if whose is None else peer(whose)
    reply = AuditReply(STAGE, STEP, ATTEMPT, "segment", 2, of)
    return list(auditing.on_reply(peer(sender), reply, SEGMENTS[2], 0.4))


def finish(auditing: Auditing, deviation: float) -> list[object]:
    """Return what comes of it once the owner has shown everything."""
    assert checking(auditing)
    shown_by(auditing, 3, None)
    shown_by(auditing, 3, 2)
    [again] = [e.task for e in auditing.work(idle=True, now=0.5) if isinstance(e, Compute)]
    assert isinstance(again, SumAgainTask)
    assert again.usual == 0.5
    assert [key.peer for key in again.parts] == [ME, SIBLING, THIRD]
    return list(auditing.computed(again, Outcome(apart=(deviation, 0.0)), 0.6))


def test_a_sum_is_checked_with_what_its_owner_shows_and_nobody_else(auditing: Auditing) -> None:
    requests = [e.message for e in checking(auditing) if isinstance(e, Send)]
    assert [(r.name, r.item, r.of) for r in requests] == [
        ("segment", 2, SIBLING),
        ("segment", 2, None),
    ]
    assert shown_by(auditing, 2, None) == [], "of another member"
    assert shown_by(auditing, 3, 1) == [], "ours is here"
    assert shown_by(auditing, 3, None)
    assert shown_by(auditing, 3, None) == [], "again"


def test_an_owner_of_a_false_sum_is_charged(auditing: Auditing) -> None:
    [charge] = [e for e in finish(auditing, 11.0) if isinstance(e, SignCharge)]
    body = CHARGE.parse(charge.body)
    assert (body.member, body.reason) == (THIRD, "sums")


def test_an_owner_of_a_sum_that_agrees_is_not_charged(auditing: Auditing) -> None:
    assert not [e for e in finish(auditing, 0.0) if isinstance(e, SignCharge)]


@pytest.mark.parametrize("segment", [0, 1, 99])
def test_a_notice_of_a_segment_that_the_member_does_not_own_is_ignored(
    auditing: Auditing, segment: int
) -> None:
    commit_all(auditing)
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD, segment), 0.0)
    assert not [e for e in auditing.closing(PLAN, 0.1) if isinstance(e, Compute)]


def test_who_contributes_something_else_than_it_signed_is_charged(auditing: Auditing) -> None:
    commit_all(auditing)
    [charge] = auditing.unsigned(PLAN, THIRD)
    assert isinstance(charge, SignCharge)
    body = CHARGE.parse(charge.body)
    assert (body.member, body.reason, body.root) == (THIRD, "other", b"r" * 32)


class TestAnAuditorThatCovers:
    """SIBLING announces an audit in every step, so that nobody looks at what it wants hidden."""

    def step(self, auditing: Auditing, step: int, *, draws: bool) -> list[object]:
        """Close a step that it has announced an audit in; return what we do for audits."""
        plan = Plan(STAGE, step, ATTEMPT, MEMBERS, [0, 64, 128, 192], [])
        for member in (ME, SIBLING, THIRD):
            said = Commitment(STAGE, step, ATTEMPT, b"r" * 32, SEGMENTS)
            auditing.on_commitment(member, said, 0.0)
        auditing.on_notice(SIBLING, AuditNotice(STAGE, step, ATTEMPT, THIRD), 0.0)
        others = {SIBLING: Record(), THIRD: Record()}
        digests = (bytes([n]) * 32 for n in range(256))
        fits = (d for d in digests if bool(self.whom(d, step, others)) == draws)
        auditing.ready(plan, next(fits))
        tasks = [e for e in auditing.closing(plan, 0.1) if isinstance(e, Compute)]
        return [e for e in tasks if isinstance(e.task, KeepVersionTask)]

    def whom(self, digest: bytes, step: int, others: dict[PeerId, Record]) -> PeerId | None:
        return drawn(bytes(32), digest, STAGE, step, others, 0.2)

    def test_our_own_draw_comes_first(self, auditing: Auditing) -> None:
        assert self.step(auditing, STEP, draws=True) == [Compute(KeepVersionTask(STEP))]
        auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2)
        effects = auditing.tick(0.2 + PATIENCE_S)
        assert [e.step for e in effects if isinstance(e, Audited)] == [STEP], "as its auditor"

    def test_a_judge_that_is_never_called_audits_what_it_draws(self, auditing: Auditing) -> None:
        assert self.step(auditing, STEP, draws=False) == [Compute(KeepVersionTask(STEP))]
        auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2)
        assert not [e for e in auditing.tick(0.2 + PATIENCE_S) if isinstance(e, Audited)]
        assert self.step(auditing, STEP + 1, draws=True) == [Compute(KeepVersionTask(STEP + 1))]

    def test_announcements_without_end_are_not_heeded(self, auditing: Auditing) -> None:
        auditing._terms.budget = 0.03  # type: ignore[union-attr]
        kept = 0
        for step in range(STEP, STEP + 100):
            tasks = self.step(auditing, step, draws=False)
            kept += any(isinstance(t.task, KeepVersionTask) for t in tasks)  # type: ignore[attr-defined]
            agrees = AuditResult(STAGE, step, ATTEMPT, THIRD, agrees=True)
            auditing.computed(KeepVersionTask(step), Outcome(), 0.2)
            auditing.on_result(SIBLING, agrees, 0.3)
        assert HEEDED <= kept <= HEEDED + 100 * NEW_TIMES * 0.03


SIGNATURE = b"g" * 64


class TestWhatWasContributed:
    """THIRD contributes to a segment of ours."""

    said = Commitment(STAGE, STEP, ATTEMPT, b"r" * 32, SEGMENTS, SIGNATURE)
    sent = Segment(STAGE, STEP, ATTEMPT, 0, signature=SIGNATURE)

    @pytest.mark.parametrize("first", ["commitment", "segment"])
    def test_something_else_than_was_signed_is_shown(self, auditing: Auditing, first: str) -> None:
        if first == "commitment":
            assert auditing.on_commitment(THIRD, self.said, 0.0) == []
            [shown] = auditing.on_segment(THIRD, self.sent, b"x" * 32)
        else:
            assert auditing.on_segment(THIRD, self.sent, b"x" * 32) == []
            [shown] = auditing.on_commitment(THIRD, self.said, 0.0)
            assert auditing.on_commitment(THIRD, self.said, 0.0) == [], "once"
        assert isinstance(shown, Contradicted)
        assert {shown.held.signer, shown.other.signer} == {THIRD}

    def test_what_was_signed_is_no_contradiction(self, auditing: Auditing) -> None:
        auditing.on_commitment(THIRD, self.said, 0.0)
        assert auditing.on_segment(THIRD, self.sent, SEGMENTS[0]) == []

    def test_who_has_signed_one_of_both_only_is_shown_to_nobody(self, auditing: Auditing) -> None:
        auditing.on_commitment(THIRD, self.said, 0.0)
        unsigned = Segment(STAGE, STEP, ATTEMPT, 1)
        assert auditing.on_segment(THIRD, unsigned, b"x" * 32) == []


def crowd(count: int) -> Plan:
    members = [PlanMember(peer(n), b"") for n in range(1, count + 1)]
    return Plan(STAGE, STEP, ATTEMPT, members, list(range(count + 1)), [])


@pytest.mark.parametrize(
    ("count", "told"), [(3, 1), (PASS_TO_ALL_UP_TO + 1, PASS_TO_ALL_UP_TO), (20, PASS_FANOUT)]
)
def test_after_a_failed_attempt_all_compare_what_they_were_told(
    auditing: Auditing, count: int, told: int
) -> None:
    plan = crowd(count)
    for number in range(1, count):
        said = Commitment(STAGE, STEP, ATTEMPT, bytes([number]) * 32, SEGMENTS, SIGNATURE)
        auditing.on_commitment(peer(number), said, 0.0)
    effects = auditing.failed(plan)
    assert all(isinstance(e, Send) and isinstance(e.message, Statements) for e in effects)
    passed = [(e.peer, e.message.envelopes[0].signer) for e in effects]  # type: ignore[union-attr]
    assert len({to for to, _ in passed}) == told
    assert len(set(passed)) == len(passed)
    assert all(to != author for to, author in passed)
    assert {author for _, author in passed} == {peer(n) for n in range(2, count)}
    assert ME not in {to for to, _ in passed}


def test_a_charge_of_ours_is_told_a_few_times(auditing: Auditing) -> None:
    auditing.update_view(seen(SIBLING), seen(SIBLING), seen(SIBLING), 0.0)
    told = [Send(SIBLING, Charged(STAGE, charge_of_third(1)))]
    assert auditing.charged(charge_of_third(1), 0.0) == told
    times = []
    for _ in range(TELL_TIMES):
        at = auditing.next_deadline()
        assert at is not None
        assert auditing.tick(at - 0.1) == []
        assert auditing.tick(at) == told
        times.append(at)
    assert times == [TELL_AGAIN_S * n for n in range(1, TELL_TIMES + 1)]
    assert auditing.next_deadline() is None
    assert auditing._terms is not None
    assert auditing._terms.open_charges() == {(STAGE, THIRD): [ME]}


def test_what_was_kept_for_auditors_is_dropped_after_a_while(auditing: Auditing) -> None:
    assert auditing.dropped(DropStep(3), 0.0) == []
    assert auditing.dropped(DropStep(4), 1.0) == []
    assert auditing.next_deadline() == KEPT_S
    assert auditing.tick(KEPT_S - 0.1) == []
    assert auditing.tick(KEPT_S) == [DropStep(3)]
    assert auditing.next_deadline() == 1.0 + KEPT_S
    assert auditing.tick(1.0 + KEPT_S) == [DropStep(4)]
    assert auditing.next_deadline() is None


def test_the_step_of_an_audit_is_kept_and_a_judge_that_nobody_calls_gives_it_up(
    auditing: Auditing,
) -> None:
    commit_all(auditing)
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    auditing.closing(PLAN, 0.0)
    auditing.computed(KeepVersionTask(STEP), Outcome(), 0.0)
    assert auditing.next_deadline() == STANDBY_S
    auditing.dropped(DropStep(STEP), 0.0)
    assert auditing.tick(KEPT_S) == [], "we may be called for it"
    for step in range(STEP + 1, STEP + 2 + KEPT_STEPS):
        gone = auditing.dropped(DropStep(step), KEPT_S)
    assert gone == [DropStep(STEP + 1)], "others make room"
    assert DropStep(STEP) in auditing.tick(STANDBY_S)
    late = AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False)
    assert auditing.on_result(SIBLING, late, STANDBY_S) == []


def test_without_audits_nothing_is_kept_or_said() -> None:
    none = Auditing(Place(ME, STAGE, 3, 4), None, 0, lambda stage: (), Commitments(ME))
    assert none.dropped(DropStep(3), 0.0) == [DropStep(3)]
    assert none.next_deadline() is None
    said = TestWhatWasContributed.said, TestWhatWasContributed.sent
    assert none.on_commitment(THIRD, said[0], 0.0) == none.on_segment(THIRD, said[1], b"") == []
    assert none.failed(PLAN) == none.unsigned(PLAN, THIRD) == none.verdicts(0.0) == []
    assert none.charged(charge_of_third(1), 0.0) == []
    assert (none.agreed_with(), none.found_out(), none.active) == ([], set(), False)


def shows(effects: list[object]) -> list[tuple[PayloadKey, ...]]:
    return [effect.keys for effect in effects if isinstance(effect, SendPayload)]


def test_what_an_auditor_is_shown_is_what_it_asks_for(auditing: Auditing) -> None:
    auditing.contributed(PLAN, frozenset({28}))
    asked: list[tuple[AuditRequest, PayloadKey | None]] = [
        (AuditRequest(STAGE, STEP, ATTEMPT, "list", 0), PayloadKey(STEP, "list", 0, ATTEMPT, ME)),
        (
            AuditRequest(STAGE, STEP, ATTEMPT, "segment", 0),
            PayloadKey(STEP, "segment", 0, ATTEMPT, ME),
        ),
        (
            AuditRequest(STAGE, STEP, ATTEMPT, "segment", 0, SIBLING),
            PayloadKey(STEP, "segment", 0, ATTEMPT, SIBLING),
        ),
        (AuditRequest(STAGE, STEP, ATTEMPT, "input", 28), PayloadKey(STEP, "input", 28)),
        (AuditRequest(STAGE, STEP, ATTEMPT, "input", 29), None),
    ]
    for request, key in asked:
        found = shows(list(auditing.on_request(THIRD, request, 1.0)))
        assert found == ([] if key is None else [(key,)]), request


@pytest.mark.parametrize("makes_room", [True, False])
def test_what_was_dropped_is_not_shown_any_more(auditing: Auditing, makes_room: bool) -> None:
    request = AuditRequest(STAGE, STEP, ATTEMPT, "list", 0)
    auditing.contributed(PLAN, frozenset({28}))
    assert auditing.on_request(THIRD, request, 0.0)
    auditing.dropped(DropStep(STEP), 0.0)
    if makes_room:
        for step in range(STEP + 1, STEP + 1 + KEPT_STEPS):
            auditing.dropped(DropStep(step), 1.0)
    else:
        assert DropStep(STEP) in auditing.tick(KEPT_S)
    assert auditing.on_request(THIRD, request, KEPT_S + 1) == []


def test_what_we_sign_of_a_segment_is_of_our_commitment(auditing: Auditing) -> None:
    sent = Segment(STAGE, STEP, ATTEMPT, 1)
    assert auditing.signs(sent) is None
    auditing.committed([SIBLING], Commitment(STAGE, STEP, ATTEMPT, b"o" * 32, SEGMENTS))
    signed = auditing.signs(sent)
    assert signed is not None
    assert PIECE.parse(signed).digest == SEGMENTS[1]
    assert auditing.signs(Segment(STAGE, STEP, ATTEMPT, 3)) is None


def test_the_seat_says_with_whom_its_audits_agree(auditing: Auditing) -> None:
    assert auditing._terms is not None
    gone = peer(9)
    for member, grades in (
        (SIBLING, [Grade.DOUBTFUL, Grade.AGREES]),
        (THIRD, [Grade.AGREES, Grade.DOUBTFUL]),
        (gone, [Grade.AGREES]),
    ):
        for grade in grades:
            auditing._terms.record(STAGE, member).note(grade)
    there = seen(SIBLING, THIRD, peer(4))
    auditing.update_view(there, there, there, 0.0)
    assert auditing.agreed_with() == [SIBLING]


class TestTheStage:
    """SIBLING audits THIRD, and we have kept the version to judge it."""

    @pytest.fixture
    def judge(self, auditing: Auditing) -> Auditing:
        commit_all(auditing)
        auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
        assert len(auditing.closing(PLAN, 0.0)) == 2
        return auditing

    def kept(self, judge: Auditing) -> bool:
        """Whether there still is something to judge."""
        said = AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False)
        judge.on_result(SIBLING, said, 1.0)
        return judge._case is not None

    @pytest.mark.parametrize(
        ("there", "kept"), [((SIBLING, THIRD), True), ((SIBLING,), True), ((THIRD,), False)]
    )
    def test_without_its_auditor_nobody_calls_us(
        self, judge: Auditing, there: tuple[PeerId, ...], kept: bool
    ) -> None:
        judge.update_view(seen(*there), seen(*there), seen(*there), 0.5)
        assert self.kept(judge) is kept

    @pytest.mark.parametrize(("there", "kept"), [((SIBLING, THIRD), True), ((SIBLING,), False)])
    def test_a_version_is_given_up_once_the_member_has_gone(
        self, judge: Auditing, there: tuple[PeerId, ...], kept: bool
    ) -> None:
        judge.computed(KeepVersionTask(STEP), Outcome(), 0.2)
        judge.update_view(seen(*there), seen(*there), seen(*there), 0.5)
        assert self.kept(judge) is kept

    def test_a_version_that_cannot_be_kept_is_not_judged(self, judge: Auditing) -> None:
        judge.computed(KeepVersionTask(STEP + 1), Outcome(error="oom"), 0.2)
        assert judge.computed(KeepVersionTask(STEP), Outcome(error="oom"), 0.2) == []
        assert not self.kept(judge)

    def test_nobody_else_calls_us(self, judge: Auditing) -> None:
        judge.computed(KeepVersionTask(STEP), Outcome(), 0.2)
        for sender, said in (
            (THIRD, AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=True)),
            (SIBLING, AuditResult(STAGE, STEP, ATTEMPT, ME, agrees=True)),
            (SIBLING, AuditResult(STAGE, STEP, ATTEMPT + 1, THIRD, agrees=True)),
        ):
            assert judge.on_result(sender, said, 0.3) == []
        assert self.kept(judge)

    def test_a_result_that_agrees_ends_it(self, judge: Auditing) -> None:
        judge.computed(KeepVersionTask(STEP), Outcome(), 0.2)
        judge.on_result(SIBLING, AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=True), 0.3)
        assert not self.kept(judge)


@pytest.mark.parametrize(
    ("sender", "member"), [(SIBLING, ME), (SIBLING, SIBLING), (peer(9), THIRD), (SIBLING, peer(9))]
)
def test_announcements_that_nobody_can_judge_are_ignored(
    auditing: Auditing, sender: PeerId, member: PeerId
) -> None:
    commit_all(auditing)
    auditing.on_notice(sender, AuditNotice(STAGE, STEP, ATTEMPT, member), 0.0)
    assert not [e for e in auditing.closing(PLAN, 0.1) if isinstance(e, Compute)]


def test_without_all_commitments_nothing_is_audited(auditing: Auditing) -> None:
    for member in (ME, THIRD):
        auditing.on_commitment(member, Commitment(STAGE, STEP, ATTEMPT, b"r" * 32, SEGMENTS), 0.0)
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    assert not [e for e in auditing.closing(PLAN, 0.1) if isinstance(e, Compute)]


def test_a_commitment_whose_signature_is_none_is_asked_for_again(auditing: Auditing) -> None:
    """Not verified before: whoever audits has to know that its author has signed it."""
    false = Commitment(STAGE, STEP, ATTEMPT, b"r" * 32, SEGMENTS, SIGNATURE)
    for member in (ME, SIBLING, THIRD):
        auditing.on_commitment(member, false, 0.0)
    auditing.on_notice(SIBLING, AuditNotice(STAGE, STEP, ATTEMPT, THIRD), 0.0)
    auditing.closing(PLAN, 0.1)
    auditing.computed(KeepVersionTask(STEP), Outcome(), 0.2)
    called = AuditResult(STAGE, STEP, ATTEMPT, THIRD, agrees=False)
    assert auditing.on_result(SIBLING, called, 0.3) == []
    assert asked(list(auditing.tick(0.3 + ASK_AGAIN_S))) == [("commitment", 0)]


def test_nobody_charges_itself_or_charges_twice(auditing: Auditing) -> None:
    commit_all(auditing)
    assert auditing.unsigned(PLAN, ME) == []
    [charge] = auditing.unsigned(PLAN, THIRD)
    assert isinstance(charge, SignCharge)
    auditing.charged(sign(signer(1), charge.kind, charge.body, SWARM), 0.0)
    assert auditing.unsigned(PLAN, THIRD) == []


def test_charges_are_told_to_the_stages_beside_ours_once_a_stage(auditing: Auditing) -> None:
    both = Replica(SIBLING, STEP, True)
    stages = [[both], [Replica(ME, STEP, True), both], [Replica(THIRD, STEP, True)]]
    there = SwarmView.of(stages)
    auditing.update_view(there, there, there, 0.0)
    said = [e for e in auditing.charged(charge_of_third(1), 0.0) if isinstance(e, Send)]
    told = [(e.peer, e.message.stage) for e in said if isinstance(e.message, Charged)]
    assert sorted(told) == sorted([(SIBLING, 0), (SIBLING, 1), (THIRD, 2)])


def test_a_verdict_ends_our_telling_and_is_told_with_all_its_charges(auditing: Auditing) -> None:
    there = seen(SIBLING)
    auditing.update_view(there, there, there, 0.0)
    auditing.charged(charge_of_third(1), 0.0)
    effects = auditing.on_charged(SIBLING, Charged(STAGE, charge_of_third(2)), 1.0)
    [verdict] = [e for e in effects if isinstance(e, Verdict)]
    assert verdict.culprit == THIRD
    told = [e.message.charge.signer for e in effects if isinstance(e, Send)]  # type: ignore[union-attr]
    assert sorted(told) == sorted([ME, SIBLING])
    assert auditing.tick(TELL_AGAIN_S) == [], "it is out"
    assert auditing._terms is not None
    assert auditing._terms.open_charges() == {}

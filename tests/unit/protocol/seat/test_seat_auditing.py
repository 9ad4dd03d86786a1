"""What a seat signs of its own contribution, what it audits, and whom it charges."""

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from protocol.audit.audit import PATIENCE_S
from protocol.audit.charges import CHARGE, KIND, MAX_OF_AUTHOR, Charge, Charges, verdict_of
from protocol.audit.commitment import contents, root_of, tensors_of
from protocol.audit.draw import drawn
from protocol.audit.record import CLEARED, Grade, Record
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PASS_FANOUT, PASS_TO_ALL_UP_TO, PeerId
from protocol.pace import ANSWER_S, HEARD_S, LOST_S
from protocol.pipeline.effects import Compute, DropStep, KeepVersionTask, Outcome, PayloadKey
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.seat.auditing import Auditing
from protocol.seat.charging import Charging
from protocol.seat.effects import SeatEffect
from protocol.seat.showing import KEPT_STEPS, Showing
from protocol.view import Replica, SwarmView
from protocol.wire.fields import Envelope
from protocol.wire.messages import (
    AuditReply,
    AuditRequest,
    Charged,
    Commitment,
    Plan,
    Statements,
)
from protocol.wire.parts import PlanMember, VotedOut
from tests.support.effects import sent
from tests.support.protocol_examples import SWARM, peer, signer

STAGE, STEP, ATTEMPT = 1, 7, 2
ME, SIBLING, THIRD = (peer(n) for n in (1, 2, 3))
SEGMENTS = (b"s" * 32,) * 3


def keeps(
    step: int = STEP, bounds: tuple[int, ...] = (0, 64, 128, 192), segment: int | None = 2
) -> KeepVersionTask:
    return KeepVersionTask(step, bounds, segment)


KEEP = keeps()


class Parts:
    """The parts of a seat that audits need, together as in the seat."""

    def __init__(self, budget: float, judges: tuple[PeerId, ...] = (ME, SIBLING, THIRD)) -> None:
        sign = partial(signer(1).sign, context=SWARM)
        self.terms = AuditTerms(budget, bytes(32), sign, charges=Charges(SWARM))
        place, self.commitments = Place(ME, STAGE, 3, 4), Commitments(ME, active=budget > 0)
        self.showing = Showing(place, self.commitments)
        self.charging = Charging(place, self.terms, lambda _: judges)
        audits = self.commitments, self.showing, self.charging
        self.auditing = Auditing(place, self.terms, *audits)

    def update_view(self, now: float, seen: SwarmView, whole: SwarmView | None = None) -> list:
        said = self.auditing.update_view(seen, now)
        return [*said, *self.charging.update_view(whole or seen, now)]

    def dropped(self, step: int, now: float) -> list[SeatEffect]:
        return self.showing.dropped(step, self.auditing.step, now)

    def tick(self, now: float) -> list[SeatEffect]:
        return [*self.auditing.tick(now), *self.showing.tick(self.auditing.step, now)]


@pytest.fixture
def parts() -> Parts:
    return Parts(0.2)


def charged(parts: Parts, member: PeerId) -> str | None:
    """The reason for which we have charged a member; None: we have not."""
    found = parts.terms.charges.of(STAGE, member, ME)
    return None if found is None else found.reason


def results(parts: Parts) -> Counter[Grade | None]:
    """What all our audits came to."""
    return sum((record.results for record in parts.terms.records.values()), Counter())


def test_a_segment_without_elements_is_not_signed(parts: Parts) -> None:
    members = [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c")]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 64, 64, 128], [])
    [commit] = parts.showing.contributed(plan, frozenset({28}))
    assert commit.peers == (SIBLING,)
    first, *rest = (PayloadKey(STEP, "segment", i, ATTEMPT, ME) for i in range(4))
    assert commit.segments == (first, None, None, rest[-1])


def test_a_step_counts_the_contributions_of_others_only(parts: Parts) -> None:
    """Ours is not one of those that a lie may be found in, and THIRD has done nothing."""
    ids = {ME: b"\x01", SIBLING: b"\x0c", peer(4): b"\x02", THIRD: b"\x00"}
    members = [PlanMember(member, held) for member, held in ids.items()]
    plan = Plan(STAGE, STEP, ATTEMPT, members, [0, 64, 128, 192, 256], [])
    assert parts.auditing.closing(plan, bytes(32), {}) == []
    assert parts.terms.contributions == 2


def seen(*siblings: PeerId) -> SwarmView:
    return SwarmView.of([[], [Replica(each, STEP, True) for each in (ME, *siblings)], []])


OF_THIRD = Charge(STAGE, THIRD, STEP, ATTEMPT, "lies")


def charge_of_third(author: int) -> Envelope:
    return signer(author).sign(KIND, CHARGE.encode(OF_THIRD), SWARM)


class TestWhoIsToldOfCharges:
    """SIBLING comes, is on probation for a while, and counts again; THIRD was charged before."""

    def test_one_that_counts_again_has_been_told(self, parts: Parts) -> None:
        told = [Send(SIBLING, Charged(STAGE, charge_of_third(1)))]
        parts.charging.charge(OF_THIRD, 0.0)
        assert parts.update_view(1.0, seen(SIBLING)) == told
        assert parts.update_view(2.0, seen(), seen(SIBLING)) == []
        assert parts.update_view(62.0, seen(SIBLING)) == []

    def test_one_that_was_away_is_a_newcomer(self, parts: Parts) -> None:
        parts.charging.charge(OF_THIRD, 0.0)
        told = parts.update_view(1.0, seen(SIBLING))
        parts.update_view(2.0, seen())
        assert parts.update_view(3.0, seen(SIBLING)) == told

    def test_one_that_has_no_seat_yet_is_told_when_it_serves(self, parts: Parts) -> None:
        parts.charging.charge(OF_THIRD, 0.0)
        fetching = SwarmView.of([[], [Replica(SIBLING, STEP, False)], []])
        assert parts.update_view(1.0, seen(), fetching) == []
        assert len(parts.update_view(62.0, seen(), seen(SIBLING))) == 1


def test_a_newcomer_is_told_who_was_expelled_before_our_process_was_started(
    parts: Parts,
) -> None:
    """Of those who have expelled THIRD none may be left that did not restart."""
    terms, charges = parts.terms, (charge_of_third(1), charge_of_third(4))
    terms.verdicts.add(verdict_of(VotedOut(STAGE, THIRD, charges)))
    said = parts.update_view(1.0, seen(SIBLING))
    assert said == [Send(SIBLING, Charged(STAGE, one)) for one in charges]
    assert parts.charging.verdicts(1.0) == [], "once"
    assert terms.open_charges() == {}


class TestWhoIsSuspected:
    """SIBLING charges THIRD."""

    def suspected(self, parts: Parts, *reasons: str, stage: int = STAGE) -> bool:
        terms = parts.terms
        for step, reason in enumerate(reasons):
            body = CHARGE.encode(Charge(stage, THIRD, step, 1, reason))
            said = Charged(STAGE, signer(2).sign(KIND, body, SWARM))
            parts.charging.on_charged(SIBLING, said, 2.0 * step)
        return any(record.doubted for record in terms.records.values())

    def test_once_for_each_that_charges_it(self, parts: Parts) -> None:
        assert self.suspected(parts, "fails")
        for _ in range(CLEARED):
            parts.terms.record(STAGE, THIRD).note(Grade.AGREES)
        assert not self.suspected(parts, "lies", "other")

    def test_not_again_by_who_has_its_charge_forgotten(self, parts: Parts) -> None:
        assert self.suspected(parts, "lies")
        for number in range(MAX_OF_AUTHOR):
            body = CHARGE.encode(replace(OF_THIRD, member=peer(100 + number)))
            said = Charged(STAGE, signer(2).sign(KIND, body, SWARM))
            parts.charging.on_charged(SIBLING, said, 10.0 + 2.0 * number)
        assert parts.terms.charges.of(STAGE, THIRD, SIBLING) is None
        for _ in range(CLEARED):
            parts.terms.record(STAGE, THIRD).note(Grade.AGREES)
        again = Charged(STAGE, signer(2).sign(KIND, CHARGE.encode(OF_THIRD), SWARM))
        parts.charging.on_charged(SIBLING, again, 900.0)
        assert not parts.terms.record(STAGE, THIRD).doubted

    @pytest.mark.parametrize(("stage", "author"), [(STAGE + 2, 2), (STAGE, 9)])
    def test_charges_from_afar_and_of_no_member_are_not_kept(
        self, parts: Parts, stage: int, author: int
    ) -> None:
        said = signer(author).sign(KIND, CHARGE.encode(replace(OF_THIRD, stage=stage)), SWARM)
        assert parts.charging.on_charged(peer(author), Charged(stage, said), 1.0) == []
        assert parts.terms.open_charges() == {}

    def test_nobody_in_another_stage(self, parts: Parts) -> None:
        assert not self.suspected(parts, "lies", stage=STAGE + 1)


@pytest.mark.parametrize(("reason", "out"), [("lies", True), ("sums", True), ("fails", False)])
def test_whom_we_have_found_out_ourselves_loses_a_dispute(
    parts: Parts, reason: str, out: bool
) -> None:
    """By others' words nobody does: anybody may charge its sibling, and hold it up then."""
    said = replace(OF_THIRD, reason=reason)
    signed = signer(2).sign(KIND, CHARGE.encode(said), SWARM)
    parts.charging.on_charged(SIBLING, Charged(STAGE, signed), 1.0)
    assert parts.charging.found_out() == set()
    parts.charging.charge(said, 1.0)
    assert parts.charging.found_out() == ({THIRD} if out else set())


MEMBERS = [PlanMember(ME, b"\x01"), PlanMember(SIBLING, b"\x02"), PlanMember(THIRD, b"\x0c")]
PLAN = Plan(STAGE, STEP, ATTEMPT, MEMBERS, [0, 64, 128, 192], [])


def close_with_third_drawn(parts: Parts, plan: Plan) -> list[object]:
    """A plan is applied whose digest is one for which we draw THIRD."""
    others = {SIBLING: Record(), THIRD: Record()}
    digests = (bytes([n]) * 32 for n in range(256))
    whom = partial(drawn, bytes(32), stage=STAGE, step=plan.step, others=others, budget=0.2)
    return list(parts.auditing.closing(plan, next(d for d in digests if whom(d) == THIRD), {}))


def auditing(parts: Parts) -> tuple[bytes, list[object]]:
    """We audit THIRD; return its list and what we do at first."""
    digests = tuple(bytes([n]) * 32 for n in range(len(tensors_of(first=False, last=False))))
    shown = contents({30: digests, 31: digests})
    committed(parts, shown)
    assert close_with_third_drawn(parts, PLAN) == [Compute(KEEP)]
    return shown, list(parts.auditing.computed(KEEP, Outcome(), 0.3))


def committed(
    parts: Parts, shown: bytes = b"", members: tuple[PeerId, ...] = (ME, SIBLING, THIRD)
) -> None:
    """These have committed to the list that THIRD shows."""
    said = Commitment(STAGE, STEP, ATTEMPT, root_of(shown), SEGMENTS)
    for member in members:
        parts.commitments.take(member, said)


def asked(effects: list[object]) -> list[tuple[str, int]]:
    return [(request.name, request.item) for _, request in sent(effects, AuditRequest)]


def test_one_contribution_is_audited_at_a_time_and_none_by_who_only_observes(parts: Parts) -> None:
    committed(parts)
    assert close_with_third_drawn(parts, replace(PLAN, members=MEMBERS[1:])) == []
    assert close_with_third_drawn(parts, PLAN) == [Compute(KEEP)]
    assert close_with_third_drawn(parts, PLAN) == []


def test_an_auditor_asks_for_the_list_and_then_for_what_it_names(parts: Parts) -> None:
    shown, effects = auditing(parts)
    assert asked(effects) == [("list", 0)]
    tensor = AuditReply(STAGE, STEP, ATTEMPT, "boundary", 30)
    assert parts.auditing.on_reply(THIRD, tensor, bytes(32), 0.4) == [], "not asked for yet"
    reply = AuditReply(STAGE, STEP, ATTEMPT, "list", 0)
    assert parts.auditing.on_reply(SIBLING, reply, shown, 0.4) == [], "of another member"
    wanted = asked(parts.auditing.on_reply(THIRD, reply, shown, 0.5))
    assert {item for _, item in wanted} <= {30, 31}
    assert wanted


def test_a_member_that_shows_nothing_has_refused_and_people_read_so(parts: Parts) -> None:
    auditing(parts)
    effects = parts.tick(0.3 + PATIENCE_S)
    assert results(parts) == {Grade.REFUSED: 1}
    assert f"stage {STAGE}, step {STEP}" in parts.terms.record(STAGE, THIRD).fault
    [words] = [effect for effect in effects if isinstance(effect, Explain)]
    assert words.level == "warning"
    assert f"stage {STAGE}, step {STEP}" in words.words
    assert parts.tick(0.4 + PATIENCE_S) == [], "once"


def test_of_two_replicas_nobody_can_decide_and_people_read_so() -> None:
    parts = Parts(1.0, judges=(ME, SIBLING))
    said: list[object] = []
    for step in range(3):  # a third refusal is a charge
        members = [PlanMember(ME, b"\x01"), PlanMember(SIBLING, b"\x02")]
        plan = Plan(STAGE, step, ATTEMPT, members, [0, 64, 128], [])
        for member in (ME, SIBLING):
            said_of = Commitment(STAGE, step, ATTEMPT, b"r" * 32, SEGMENTS[:2])
            parts.commitments.take(member, said_of)
        [keep] = parts.auditing.closing(plan, bytes(32), {})
        assert keep == Compute(keeps(step, (0, 64, 128), 1))
        parts.auditing.computed(keeps(step), Outcome(), 20.0 * step)
        said = parts.tick(20.0 * step + PATIENCE_S)
    assert charged(parts, SIBLING) == "fails"
    assert any("nobody can decide" in e.words for e in said if isinstance(e, Explain))


def test_few_steps_are_kept_because_they_were_asked_for_and_for_a_while(
    parts: Parts,
) -> None:
    def ask(step: int, now: float) -> None:
        parts.showing.on_request(SIBLING, AuditRequest(STAGE, step, 1, "list", 0), now)

    for step in range(KEPT_STEPS):
        parts.dropped(step, 0.0)
        ask(step, 0.0)
    for step in range(KEPT_STEPS, 2 * KEPT_STEPS):
        assert parts.dropped(step, 1.0) == []
    ask(KEPT_STEPS, 1.0)
    gone = parts.dropped(2 * KEPT_STEPS, 1.0)
    assert gone == [DropStep(KEPT_STEPS)], "as many as are kept had been asked for before"
    ask(2 * KEPT_STEPS, 0.5 + LOST_S)
    gone = parts.dropped(2 * KEPT_STEPS + 1, 0.5 + LOST_S)
    assert DropStep(0) in gone, "nobody has come back for it"


OWNER_ONLY = Plan(
    STAGE,
    STEP,
    ATTEMPT,
    [PlanMember(ME, b"\x03"), PlanMember(SIBLING, b"\x0c"), PlanMember(THIRD, b"\x00")],
    [0, 64, 128, 192],
    [],
)


def checking(parts: Parts) -> list[object]:
    """We make the sum of THIRD's segment again; it has contributed nothing."""
    committed(parts)
    assert close_with_third_drawn(parts, OWNER_ONLY) == [Compute(KEEP)]
    return list(parts.auditing.computed(KEEP, Outcome(), 0.2))


def shown_by(parts: Parts, sender: int, whose: int | None) -> list[object]:
    of = None if whose is None else peer(whose)
    reply = AuditReply(STAGE, STEP, ATTEMPT, "segment", 2, of)
    return list(parts.auditing.on_reply(peer(sender), reply, SEGMENTS[2], 0.4))


def finish(parts: Parts, deviation: float, *, idle: bool = True) -> list[object]:
    """Return what comes of it once the owner has shown everything."""
    assert checking(parts)
    shown_by(parts, 3, None)
    shown_by(parts, 3, 2)
    late = 0.4 + 2 * ANSWER_S
    assert parts.auditing.work(idle=False, now=late - 0.1) == [], "the worker has other work"
    now = late - 0.1 if idle else late
    [again] = [e.task for e in parts.auditing.work(idle=idle, now=now) if isinstance(e, Compute)]
    assert again.compare_to == PayloadKey(STEP, "reduced", 2, ATTEMPT, THIRD)
    assert [key.peer for key in again.parts] == [ME, SIBLING, THIRD]
    return list(parts.auditing.computed(again, Outcome(apart=(deviation, 0.0)), 0.6))


def test_a_sum_is_checked_with_what_its_owner_shows_and_nobody_else(parts: Parts) -> None:
    requests = [e.message for e in checking(parts) if isinstance(e, Send)]
    assert [(r.name, r.item, r.of) for r in requests] == [
        ("segment", 2, SIBLING),
        ("segment", 2, None),
    ]
    assert shown_by(parts, 2, None) == [], "of another member"
    assert shown_by(parts, 3, 1) == [], "ours is here"
    assert shown_by(parts, 3, None)
    assert shown_by(parts, 3, None) == [], "again"


def test_an_owner_is_charged_for_a_false_sum_alone() -> None:
    for deviation, reason, idle in ((11.0, "sums", True), (0.0, None, False)):
        parts = Parts(0.2)
        finish(parts, deviation, idle=idle)
        assert charged(parts, THIRD) == reason


SIGNATURE = b"g" * 64


def crowd(count: int) -> Plan:
    members = [PlanMember(peer(n), b"") for n in range(1, count + 1)]
    return Plan(STAGE, STEP, ATTEMPT, members, list(range(count + 1)), [])


@pytest.mark.parametrize(
    ("count", "told"), [(3, 1), (PASS_TO_ALL_UP_TO + 1, PASS_TO_ALL_UP_TO), (20, PASS_FANOUT)]
)
def test_after_a_failed_attempt_all_compare_what_they_were_told(
    parts: Parts, count: int, told: int
) -> None:
    plan = crowd(count)
    for number in range(1, count):
        said = Commitment(STAGE, STEP, ATTEMPT, bytes([number]) * 32, SEGMENTS, SIGNATURE)
        parts.commitments.take(peer(number), said)
    effects = parts.auditing.failed(plan)
    assert all(isinstance(e, Send) and isinstance(e.message, Statements) for e in effects)
    passed = [(e.peer, e.message.envelopes[0].signer) for e in effects]
    assert len({to for to, _ in passed}) == told
    assert len(set(passed)) == len(passed)
    assert all(to != author for to, author in passed)
    assert {author for _, author in passed} == {peer(n) for n in range(2, count)}
    assert ME not in {to for to, _ in passed}


def test_a_charge_of_ours_is_told_when_it_is_new(parts: Parts) -> None:
    parts.update_view(0.0, seen(SIBLING))
    told = [Send(SIBLING, Charged(STAGE, charge_of_third(1)))]
    assert parts.charging.charge(OF_THIRD, 0.0) == told
    assert parts.tick(99 * HEARD_S) == []
    assert parts.terms.open_charges() == {(STAGE, THIRD): [ME]}


def test_the_step_of_an_audit_is_kept(parts: Parts) -> None:
    auditing(parts)
    parts.dropped(STEP, 0.0)
    assert DropStep(STEP) not in parts.tick(LOST_S)
    for step in range(STEP + 1, STEP + 2 + KEPT_STEPS):
        gone = parts.dropped(step, LOST_S)
    assert gone == [DropStep(STEP + 1)], "others make room"
    parts.tick(0.3 + PATIENCE_S)
    assert DropStep(STEP) in parts.tick(0.3 + PATIENCE_S + LOST_S)


def test_without_audits_nobody_is_audited_or_charged() -> None:
    none = Parts(0.0)
    committed(none)
    assert close_with_third_drawn(none, PLAN) == []
    for author in (1, 2):
        said = Charged(STAGE, charge_of_third(author))
        assert none.charging.on_charged(peer(author), said, 1.0) == []
    assert none.terms.open_charges() == {}


def test_what_an_auditor_is_shown_is_what_it_asks_for(parts: Parts) -> None:
    parts.showing.contributed(PLAN, frozenset({28}))
    for asks, named in (
        (("list", 0), (0, ATTEMPT, ME)),
        (("segment", 0), (0, ATTEMPT, ME)),
        (("segment", 0, SIBLING), (0, ATTEMPT, SIBLING)),
        (("input", 28), (28,)),
    ):
        request = AuditRequest(STAGE, STEP, ATTEMPT, *asks)
        [shown] = parts.showing.on_request(THIRD, request, 1.0)
        assert shown.keys == (PayloadKey(STEP, asks[0], *named),)


@pytest.mark.parametrize("makes_room", [True, False])
def test_what_was_dropped_is_not_shown_any_more(parts: Parts, makes_room: bool) -> None:
    request = AuditRequest(STAGE, STEP, ATTEMPT, "list", 0)
    parts.showing.contributed(PLAN, frozenset({28}))
    assert parts.showing.on_request(THIRD, request, 0.0)
    parts.dropped(STEP, 0.0)
    if makes_room:
        for step in range(STEP + 1, STEP + 1 + KEPT_STEPS):
            parts.dropped(step, 1.0)
    else:
        assert DropStep(STEP) in parts.tick(LOST_S)
    assert parts.showing.on_request(THIRD, request, LOST_S + 1) == []


def test_the_seat_says_with_whom_its_audits_agree(parts: Parts) -> None:
    gone = peer(9)
    for member, grades in (
        (SIBLING, [Grade.DOUBTFUL, Grade.AGREES]),
        (THIRD, [Grade.AGREES, Grade.DOUBTFUL]),
        (gone, [Grade.AGREES]),
    ):
        for grade in grades:
            parts.terms.record(STAGE, member).note(grade)
    there = seen(SIBLING, THIRD, peer(4))
    assert parts.auditing.agreed_with(there) == [SIBLING]


class TestTheStage:
    """We audit THIRD."""

    @pytest.fixture
    def auditor(self, parts: Parts) -> Parts:
        committed(parts)
        assert close_with_third_drawn(parts, PLAN) == [Compute(KEEP)]
        return parts

    @pytest.mark.parametrize("version_kept", [False, True])
    @pytest.mark.parametrize(("there", "kept"), [((SIBLING, THIRD), True), ((SIBLING,), False)])
    def test_without_its_member_it_is_given_up(
        self, auditor: Parts, there: tuple[PeerId, ...], *, kept: bool, version_kept: bool
    ) -> None:
        if version_kept:
            auditor.auditing.computed(KEEP, Outcome(), 0.2)
        auditor.update_view(0.5, seen(*there))
        assert (auditor.auditing.step is not None) is kept

    def test_a_version_that_cannot_be_kept_is_not_judged(self, auditor: Parts) -> None:
        auditor.auditing.computed(keeps(STEP + 1), Outcome(error="oom"), 0.2)
        auditor.auditing.computed(KEEP, Outcome(error="oom"), 0.2)
        assert auditor.auditing.step is None


def test_without_all_commitments_nothing_is_audited(parts: Parts) -> None:
    committed(parts, members=(ME, THIRD))
    assert close_with_third_drawn(parts, PLAN) == []


def test_nobody_charges_itself_or_charges_twice(parts: Parts) -> None:
    assert parts.charging.charge(replace(OF_THIRD, member=ME), 0.0) == []
    parts.charging.charge(OF_THIRD, 0.0)
    assert (charged(parts, ME), charged(parts, THIRD)) == (None, "lies")
    kept = parts.terms.charges.all(0.0)
    assert parts.charging.charge(replace(OF_THIRD, reason="other"), 1.0) == []
    assert parts.terms.charges.all(1.0) == kept


def test_charges_are_told_to_the_stages_beside_ours_once_a_stage(parts: Parts) -> None:
    both = Replica(SIBLING, STEP, True)
    stages = [[both], [Replica(ME, STEP, True), both], [Replica(THIRD, STEP, True)]]
    there = SwarmView.of(stages)
    parts.update_view(0.0, there)
    said = [e for e in parts.charging.charge(OF_THIRD, 0.0) if isinstance(e, Send)]
    told = [(e.peer, e.message.stage) for e in said if isinstance(e.message, Charged)]
    assert sorted(told) == sorted([(SIBLING, 0), (SIBLING, 1), (THIRD, 2)])


def test_a_majority_of_those_that_judge_expels() -> None:
    parts = Parts(0.2, judges=(ME, SIBLING, THIRD, peer(4), peer(5)))
    parts.charging.charge(OF_THIRD, 0.0)
    for author in (2, 4):
        assert THIRD not in parts.terms.verdicts
        said = Charged(STAGE, charge_of_third(author))
        parts.charging.on_charged(peer(author), said, 1.0)
    assert THIRD in parts.terms.verdicts


def test_a_verdict_is_told_with_all_its_charges(parts: Parts) -> None:
    beside, ours = peer(4), [Replica(ME, STEP, True), Replica(SIBLING, STEP, True)]
    there = SwarmView.of([[], ours, [Replica(beside, STEP, True)]])
    parts.update_view(0.0, there)
    parts.charging.charge(OF_THIRD, 0.0)
    effects = parts.charging.on_charged(SIBLING, Charged(STAGE, charge_of_third(2)), 1.0)
    [verdict, *told] = effects
    assert verdict.culprit == THIRD
    assert parts.terms.open_charges() == {}
    assert len(told) == 3, "ours to both, theirs to whom it is not"
    assert Send(beside, Charged(STAGE + 1, charge_of_third(2))) in told

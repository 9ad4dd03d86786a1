"""A seat's audits: it commits to its contributions, shows them to auditors, and audits others.

Audited is a contribution, and the sum of one segment that its author has broadcast.

An auditor draws a member when it is Ready for the step, and tells the others (never the member)
before it says so. They keep the version, too: if the auditor finds fault, they audit the same
contribution themselves, as *judges*. Whoever has found a member out charges it (``charges.py``). A
majority of the stage expels. Of two replicas none is one: three are the least that can convict.

Audits never stand in the way of a round: their tasks wait until the worker has nothing else to do,
for two seconds at most, and one is with the worker at a time.

State: the commitments of the newest steps, one audit at a time, what is kept for auditors after the
neighbours need it no more; and in ``AuditTerms`` what outlives the seat.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol import limits
from protocol.audit.audit import Ask, AskList, Audit, AuditEffect, Judged, Subject, SumSubject
from protocol.audit.charges import (
    CHARGE,
    KIND,
    Charge,
    Charges,
    Reason,
)
from protocol.audit.commitment import (
    envelope_of,
    envelope_of_piece,
    piece_of,
    statement_of,
    tensors_of,
)
from protocol.audit.draw import NEW_TIMES, drawn, segment_drawn
from protocol.audit.record import Grade, Record
from protocol.effects import Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, SwarmId, rank, short
from protocol.membership.view import Contradicted
from protocol.pipeline.effects import (
    AuditTask,
    CompareTask,
    Compute,
    DropStep,
    Keep,
    KeepVersionTask,
    Outcome,
    PayloadKey,
    RecomputeTask,
    SendPayload,
    SumAgainTask,
    UsualNormTask,
)
from protocol.pipeline.ledger import count_of, from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.plans import active, owner
from protocol.seat.effects import (
    Audited,
    CommitTo,
    Contributions,
    SeatEffect,
    SignCharge,
)
from protocol.seat.showing import Showing
from protocol.token_bucket import Rate, TokenBuckets
from protocol.verdicts import Verdicts
from protocol.view import SwarmView
from protocol.wire.envelope import verify
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

KEPT_S: Final = 10.0
"""How long payloads are kept for auditors after the neighbours have closed their step, and after
one was shown: an auditor asks as soon as it has closed the step."""
KEPT_STEPS: Final = 4
"""Steps that are kept so, at most."""
STANDBY_S: Final = 60.0
"""How long a judge keeps a version for an audit of which it hears nothing."""
WAITS_S: Final = 2.0
"""An audit's task waits so long for a worker that has nothing else to do."""
TELL_AGAIN_S: Final = 3.0
TELL_TIMES: Final = 3
"""A charge is told again, for messages that are lost."""
PLANS: Final = 256
"""Steps of which the members are remembered: an audit may last some."""
SECRET_BYTES: Final = 32
HEEDED: Final = 4.0
"""Announced audits of one member that are heeded at once; then as many as an honest one draws. An
announcement occupies its judges: a liar could announce audits without end, so that nobody looks
at anything else."""
MAX_HEEDED: Final = 64
MOST_HEEDED: Final = 0.5
"""Of the steps, however large the budget is."""

PASS_TO_ALL_UP_TO: Final = 8
"""Members; of more, a sample is told of commitments."""
PASS_FANOUT: Final = 3

Role = Literal["auditor", "judge"]


@dataclass(slots=True)
class AuditTerms:
    """What audits of a volunteer go by, in all its seats.

    Fields:
        budget: share of all contributions that the run wants to be audited.
        secret: 32 bytes that only we know.
        coarse: whether the averaging codec loses anything.
        mixed: whether passes compute in few bits.
        charges: who charges whom.
        records: what our audits came to, by stage and member.
        verdicts: who is out, which all of this process share.
        plans: members of the plans that closed the newest steps, by stage, step and attempt.
        results: of our audits, by grade; ``void`` for those that came to nothing.
    """

    budget: float
    secret: bytes
    coarse: bool
    swarm: SwarmId
    charges: Charges
    records: dict[tuple[int, PeerId], Record] = field(default_factory=dict)
    verdicts: Verdicts = field(default_factory=Verdicts)
    plans: dict[tuple[int, int, int], frozenset[PeerId]] = field(default_factory=dict)
    mixed: bool = False
    results: Counter[str] = field(default_factory=Counter)

    def share(self, verdicts: Verdicts, now: float) -> None:
        """Go by these verdicts, and take the charges of earlier ones: others of the stage may not
        know all of them, and go on with the member unless somebody tells them again."""
        self.verdicts = verdicts
        for out in verdicts.votes:
            self.charges.restore(out, now)

    def record(self, stage: int, peer: PeerId) -> Record:
        """Return the record of a member of a stage."""
        return self.records.setdefault((stage, peer), Record())

    def open_charges(self) -> dict[tuple[int, PeerId], list[PeerId]]:
        """Return who charges whom, where that has expelled nobody; not the charges of those who
        are expelled themselves."""
        found: dict[tuple[int, PeerId], list[PeerId]] = {}
        for kept in self.charges.all(-math.inf):
            member, author = PeerId(kept.charge.member), PeerId(kept.envelope.signer)
            if member not in self.verdicts and author not in self.verdicts:
                found.setdefault((kept.charge.stage, member), []).append(author)
        return found


@dataclass(slots=True)
class _Case:
    """What we audit, or keep a version for."""

    subject: Subject
    role: Role
    auditor: PeerId
    others: tuple[PeerId, ...]
    """Members that are told the result: neither the audited one nor ourselves."""
    until: float = 0.0
    """When a judge loses patience; set once the version is kept."""
    kept: bool = False
    called: bool = False
    """Whether the auditor has found fault."""
    usual: float = 0.0
    """The norm that the segment has had lately whose sum is made again."""
    audit: Audit | None = None


class Auditing:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        terms: None: the run has no audits, and this does nothing.
        era: of the seat.
        judges: returns the members of a stage whose charges count, as we know them.
        commitments: what members have committed to contribute.
    """

    def __init__(
        self,
        place: Place,
        terms: AuditTerms | None,
        era: int,
        judges: Callable[[int], Collection[PeerId]],
        commitments: Commitments,
    ) -> None:
        self._place, self._terms, self._era, self._judges = place, terms, era, judges
        self._commitments = commitments
        self._drawn: tuple[int, PeerId | None, int | None] = (-1, None, None)
        """The step that we drew for last, whom we drew, and of whose segments the sum."""
        self._notice: tuple[PeerId, AuditNotice] | None = None
        self._closed = 0
        """Steps that we have closed."""
        self._heeded = TokenBuckets[PeerId](MAX_HEEDED)
        """Announcements of a member; the clock counts the steps that we have closed."""
        self._heeded_now = set[PeerId]()
        """Members of which one was heeded in this step: others there cost nothing."""
        self._case: _Case | None = None
        self._tasks: deque[tuple[AuditTask, float]] = deque()
        """What waits for the worker, with the time at which it waits no longer."""
        self._kept: dict[int, float] = {}
        """Steps that nobody but auditors needs, with until when."""
        self._asked: dict[int, float] = {}
        """Until when such steps are kept because an auditor has asked for them; a few more."""
        self._again: dict[PeerId, tuple[int, float]] = {}
        """Members that we charge: how often it is still told, and when next."""
        self._near: frozenset[PeerId] = frozenset()
        """Holders of our stage and those beside it, who are told of charges."""
        self._told: frozenset[PeerId] = frozenset()
        """Those that have missed nothing that we told, until they leave the swarm: who is on
        probation for a while is told afterwards what was said meanwhile, and nothing twice."""
        self._seen = SwarmView(((),) * place.stages)
        everywhere = place.tokens_everywhere
        self._tensors = tensors_of(first=place.first, last=place.last, tokens_everywhere=everywhere)
        self._showing = Showing(place.me, self._tensors)

    @property
    def active(self) -> bool:
        """Whether the run has audits."""
        return self._terms is not None

    def agreed_with(self) -> list[PeerId]:
        """Return the other replicas of the last view of our stage whose work our newest audit of
        each found in agreement."""
        records = {} if self._terms is None else self._terms.records
        here = (replica.peer for replica in self._seen.stages[self._place.stage])
        stage, most = self._place.stage, limits.MAX_REPLICAS_IN_ROUND
        agreed = (p for p in here if (record := records.get((stage, p))) and record.agreed)
        return list(agreed)[:most]

    def found_out(self) -> set[PeerId]:
        """Return whom we have found out ourselves and charge, of any stage."""
        return set() if self._terms is None else self._terms.charges.found_out_by(self._place.me)

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        if self._terms is None:
            return None
        case = self._case
        due = [until for _, until in self._again.values()]
        due += self._kept.values()
        due += [until for _, until in list(self._tasks)[:1]]
        if case is not None and case.audit is not None:
            due += [at for at in (case.audit.next_deadline(),) if at is not None]
        elif case is not None and case.kept:
            due.append(case.until)
        return min(due, default=None)

    # --- as a member ----------------------------------------------------------------------------

    def contributed(self, plan: Plan, counted: frozenset[int]) -> list[SeatEffect]:
        """Our contribution is encoded: commit to it before anybody gets a part of it."""
        me = self._place.me
        if self._terms is None or len(plan.members) < 2:
            return []
        segments, step, attempt = set(active(plan)), plan.step, plan.attempt
        self._showing.contributed(plan, counted)
        return [
            CommitTo(
                (
                    *(PeerId(m.peer) for m in plan.members if m.peer != me),
                    *map(PeerId, plan.observers),
                ),
                Commitment(plan.stage, step, attempt, era=self._era),
                {m: tuple(PayloadKey(step, name, m) for name in self._tensors) for m in counted},
                tuple(
                    PayloadKey(step, "segment", i, attempt, me) if i in segments else None
                    for i in range(len(plan.bounds) - 1)
                ),
            )
        ]

    def committed(self, peers: Sequence[PeerId], own: Commitment) -> list[SeatEffect]:
        """Our commitment is signed: tell the other members of the plan."""
        self._commitments.take(self._place.me, own)
        return [Send(peer, own) for peer in peers]

    def signs(self, message: Segment) -> bytes | None:
        """Return what we sign of a segment that we send: that it is of our commitment, and never
        anything else; None without audits."""
        said = self._commitments.of(self._place.me, message.step, message.attempt)
        if said is None or message.segment >= len(said.segments):
            return None
        return piece_of(message, said.segments[message.segment])

    def on_request(self, sender: PeerId, message: AuditRequest, now: float) -> list[SeatEffect]:
        """Show an auditor what it asks for, if we have it, and not without end."""
        of = message
        if self._terms is None:
            return []
        if of.name == "commitment":
            own = self._commitments.of(self._place.me, of.step, of.attempt)
            return [] if own is None else [Send(sender, own)]
        if of.name == "list" or of.name == "segment":
            whose = self._place.me if of.of is None else of.of
            key = PayloadKey(of.step, of.name, of.item, of.attempt, whose)
        else:
            key = PayloadKey(of.step, of.name, of.item)
        if of.step in self._kept:
            self._kept[of.step] = max(self._kept[of.step], now + KEPT_S)
            self._asked = {s: until for s, until in self._asked.items() if until > now}
            if len(self._asked) < KEPT_STEPS or of.step in self._asked:
                self._asked[of.step] = now + KEPT_S
        if not self._showing.shows(sender, of):
            return []
        reply = AuditReply(of.stage, of.step, of.attempt, of.name, of.item, of.of)
        return [SendPayload(sender, reply, (key,))]

    def dropped(self, drop: DropStep, now: float) -> list[SeatEffect]:
        """The neighbours need a step's payloads no more: auditors may, for a while."""
        if self._terms is None:
            return [drop]
        self._kept[drop.step] = now + KEPT_S
        effects: list[SeatEffect] = []
        needed = {s for s, until in self._asked.items() if until > now}
        if self._case is not None:
            needed.add(self._case.subject.step)
        spare = sorted((s for s in self._kept if s not in needed), key=lambda s: (self._kept[s], s))
        for oldest in spare[: max(0, len(spare) - KEPT_STEPS)]:
            del self._kept[oldest]
            self._showing.forget(oldest)
            effects.append(DropStep(oldest))
        return effects

    # --- as an auditor or a judge ---------------------------------------------------------------

    def on_commitment(self, sender: PeerId, message: Commitment, now: float) -> list[SeatEffect]:
        """Keep a commitment; its signature was verified when it came."""
        if self._terms is None:
            return []
        known = self._commitments.of(sender, message.step, message.attempt)
        self._commitments.take(sender, message)
        found = self._contradicted(sender, message.step, message.attempt) if known is None else []
        return [*found, *self._feed(now)]

    def on_segment(self, sender: PeerId, message: Segment, digest: bytes) -> list[SeatEffect]:
        """A contribution to a segment of ours has come, with its ``digest``."""
        if self._terms is None:
            return []
        self._commitments.came(sender, message, digest)
        return self._contradicted(sender, message.step, message.attempt)

    def _contradicted(self, member: PeerId, step: int, attempt: int) -> list[SeatEffect]:
        """Return the proof that a member has contributed something else than it has committed to,
        if it has signed both. Who signs only the commitment has contributed nothing: it is refused
        (``rounds/member.py``) and charged, which needs a majority."""
        said = self._commitments.of(member, step, attempt)
        came = self._commitments.other(member, step, attempt)
        if said is None or came is None:
            return []
        one, other = envelope_of(member, said), envelope_of_piece(member, came.message, came.digest)
        return [] if one is None or other is None else [Contradicted(one, other)]

    def failed(self, plan: Plan) -> list[SeatEffect]:
        """We were Ready for an attempt, and it is planned anew: a member may have committed to
        something else before others than before us, so that no digest was agreed on. Pass on what
        we were told, for the others to compare."""
        me = self._place.me
        if self._terms is None:
            return []
        others = [PeerId(m.peer) for m in plan.members if m.peer != me]
        told = others
        if len(others) > PASS_TO_ALL_UP_TO:
            told = sorted(others, key=lambda peer: rank(me, plan.step, plan.attempt, peer))
            told = told[:PASS_FANOUT]
        effects: list[SeatEffect] = []
        for author in others:
            said = self._commitments.of(author, plan.step, plan.attempt)
            shown = None if said is None else envelope_of(author, said)
            if shown is not None:
                effects += [
                    Send(peer, Statements("decision", (shown,))) for peer in told if peer != author
                ]
        return effects

    def unsigned(self, plan: Plan, member: PeerId) -> list[SeatEffect]:
        """A member has contributed something else to us than it has signed: charge it."""
        said = self._commitments.of(member, plan.step, plan.attempt)
        if self._terms is None or said is None:
            return []
        of = Charge(plan.stage, member, plan.step, plan.attempt, said.root, "other")
        return self._charge(member, of, said.root, "other")

    def ready(self, plan: Plan, digest: bytes) -> list[SeatEffect]:
        """We are about to be Ready: draw whether a member is audited, and tell the judges.

        Args:
            plan: the plan that we follow.
            digest: for which we are Ready.
        """
        me, terms, step = self._place.me, self._terms, plan.step
        counts = self._counts(plan)
        if terms is None or me not in counts or len(counts) < 2:
            return []
        if self._drawn[0] != step:
            self._drawn = step, None, None
            if self._case is None or self._is_waiting(self._case):
                self._drawn = step, self._draw(plan, digest, terms), None
        member = self._drawn[1]
        if member is None:
            return []
        segments = self._owned(plan, member)
        segment = segment_drawn(terms.secret, digest, plan.stage, step, segments)
        self._drawn = step, member, segment
        if not self._can_be_audited(plan, member, segment):
            return []
        notice = AuditNotice(plan.stage, step, plan.attempt, member, segment)
        return [Send(peer, notice) for peer in counts if peer not in (me, member)]

    def _draw(self, plan: Plan, digest: bytes, terms: AuditTerms) -> PeerId | None:
        """Draw one of the other members that have contributed anything, or broadcast a sum."""
        stage = plan.stage
        others = {
            peer: terms.record(stage, peer)
            for peer, counted in self._counts(plan).items()
            if peer != self._place.me and (counted or self._owned(plan, peer))
        }
        return drawn(terms.secret, digest, stage, plan.step, others, terms.budget)

    def _owned(self, plan: Plan, member: PeerId) -> list[int]:
        """Return the segments of an attempt whose sums a member has broadcast."""
        return [i for i in active(plan) if owner(plan, i) == member]

    def _can_be_audited(self, plan: Plan, member: PeerId, segment: int | None) -> bool:
        """Whether this attempt has the contribution and the sum that were drawn or announced."""
        if self._commitments.missing(plan):
            return False
        if segment is None:
            return bool(self._counts(plan).get(member))
        return segment in self._owned(plan, member)

    def on_notice(self, sender: PeerId, message: AuditNotice, now: float) -> list[SeatEffect]:
        """Another member audits this step's contribution of a third one."""
        if self._heeds(sender):
            self._notice = sender, message
        return []

    def _heeds(self, sender: PeerId) -> bool:
        """Whether a member may occupy us with one more audit that it announces."""
        if self._terms is None:
            return False
        each = Rate(min(MOST_HEEDED, NEW_TIMES * self._terms.budget), HEEDED)
        if sender not in self._heeded_now and not self._heeded.take({sender: each}, self._closed):
            return False
        self._heeded_now.add(sender)
        return True

    def closing(self, plan: Plan, now: float) -> list[SeatEffect]:
        """A step is about to be applied: keep its version if one of its contributions is audited,
        by us or by another member."""
        me, terms, counts = self._place.me, self._terms, self._counts(plan)
        if terms is None or me not in counts:
            return []
        terms.plans[plan.stage, plan.step, plan.attempt] = frozenset(counts)
        while len(terms.plans) > PLANS:
            del terms.plans[next(iter(terms.plans))]
        self._closed += 1
        self._heeded_now.clear()
        others = sum(peer != me and bool(counts[peer]) for peer in counts)
        return [Contributions(others), *self._take_case(plan, counts, now)]

    def _take_case(
        self, plan: Plan, counts: dict[PeerId, frozenset[int]], now: float
    ) -> list[SeatEffect]:
        me = self._place.me
        role: Role = "auditor"
        auditor, (step, member, segment) = me, self._drawn
        if step != plan.step:
            member = None
        if self._case is not None:
            if member is None or not self._is_waiting(self._case):
                return []
            self._case = None  # our own draw comes before the word of another auditor
        if member is None and self._notice is not None and self._noticed(plan):
            auditor, notice = self._notice
            role, member, segment = "judge", PeerId(notice.member), notice.segment
        if member is None or member == me or auditor not in counts:
            return []
        if not self._can_be_audited(plan, member, segment):
            return []
        of = self._subject(plan, member, segment)
        self._case = _Case(of, role, auditor, tuple(p for p in counts if p not in (me, member)))
        tasks = [Compute(KeepVersionTask(plan.step))]
        if segment is None:
            return [*tasks]
        return [Compute(UsualNormTask(of.step, of.bounds, segment)), *tasks]

    def _is_waiting(self, case: _Case) -> bool:
        """Whether we are a judge that has not been called: it may never be."""
        return case.role == "judge" and not case.called

    def on_result(self, sender: PeerId, message: AuditResult, now: float) -> list[SeatEffect]:
        """The auditor has come to a result: judge it if it has found fault."""
        case = self._case
        if case is None or case.role != "judge" or case.auditor != sender or case.audit is not None:
            return []
        of = case.subject
        if (message.step, message.attempt, message.member) != (of.step, of.attempt, of.member):
            return []
        if message.agrees:
            self._case = None
            return []
        case.called = True
        return self._begin(now)

    def on_reply(
        self, sender: PeerId, message: AuditReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what a member shows; ``digest`` of the list is the list itself."""
        case = self._case
        if case is None or case.audit is None or case.subject.member != sender:
            return []
        of = case.subject
        if (message.step, message.attempt) != (of.step, of.attempt):
            return []
        if message.name == "commitment":
            return []
        if message.name == "list":
            return self._perform(case.audit.listed(digest, now), now)
        whose = sender if message.of is None else message.of
        key = PayloadKey(of.step, message.name, message.item, of.attempt, whose)
        if not case.audit.waits_for(key):
            return []
        return [Keep((key,)), *self._perform(case.audit.shown(key, digest, now), now)]

    def computed(self, task: AuditTask, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Take what a task of the audit came to."""
        case = self._case
        if case is None or case.subject.step != task.step:
            return []
        if isinstance(task, UsualNormTask) and not outcome.error:
            case.usual = outcome.sq_norm
            return []
        if isinstance(task, KeepVersionTask | UsualNormTask):
            if outcome.error:  # we have not seen the sum before, or have no memory for the copy
                return self._over(case, None, "the version could not be kept", now)
            case.kept, case.until = True, now + STANDBY_S
            return self._begin(now)
        if case.audit is None:
            return []
        if outcome.error:
            return self._perform(case.audit.not_computed(outcome.error), now)
        if isinstance(task, SumAgainTask):
            return self._perform(case.audit.summed(outcome.apart[0]), now)
        if isinstance(task, RecomputeTask):
            return self._perform(case.audit.recomputed(*outcome.apart, now), now)
        return self._perform(case.audit.compared(*outcome.apart, now), now)

    def work(self, *, idle: bool, now: float) -> list[SeatEffect]:
        """Give the worker the next task, if it is idle or the task has waited long enough."""
        if not self._tasks or not (idle or now >= self._tasks[0][1]):
            return []
        return [Compute(self._tasks.popleft()[0])]

    # --- charges --------------------------------------------------------------------------------

    def charged(self, envelope: Envelope, now: float) -> list[SeatEffect]:
        """Our own charge is signed: tell everybody whom it concerns."""
        if self._terms is None or (charge := self._terms.charges.take(envelope, now)) is None:
            return []
        self._again[PeerId(charge.member)] = TELL_TIMES, now + TELL_AGAIN_S
        return [*self._tell_near(envelope), *self.verdicts(now)]

    def on_charged(self, sender: PeerId, message: Charged, now: float) -> list[SeatEffect]:
        """Take a charge of a member of our stage, or of one beside it."""
        author, terms = PeerId(message.charge.signer), self._terms
        if terms is None:
            return []
        body = CHARGE.parse(message.charge.body)
        if abs(body.stage - self._place.stage) > 1 or not self._may_charge(author, body):
            return []
        known = terms.charges.of(body.stage, PeerId(body.member), author)
        charge = terms.charges.take(message.charge, now)
        if charge is None:
            return []
        if known is None:
            self._suspect(charge)
        return self.verdicts(now)

    def _suspect(self, charge: Charge) -> None:
        """Look at a member of our stage soon, because another has charged it for the first time:
        audits last long we would seldom be free when we are called to judge."""
        terms, member = self._terms, PeerId(charge.member)
        if terms is None or charge.stage != self._place.stage:
            return
        terms.record(charge.stage, member).suspected = True

    def verdicts(self, now: float) -> list[SeatEffect]:
        """Return the members that majorities of their stages have charged by now, once each."""
        terms = self._terms
        if terms is None:
            return []
        effects: list[SeatEffect] = []
        for stage, member in terms.charges.charged(now):
            if member in terms.verdicts or abs(stage - self._place.stage) > 1:
                continue
            verdict = terms.charges.verdict(stage, member, self._judges_at, now)
            if verdict is None or not terms.verdicts.add(verdict):
                continue
            self._again.pop(member, None)
            effects.append(verdict)
            for envelope in verdict.charges:  # some may not have got all of them
                effects += self._tell_near(envelope, but=member)
        return effects

    def _judges_at(self, charge: Charge) -> Collection[PeerId]:
        """Return the members of a stage at the step of a charge: of ours those of the plan, if we
        have closed the step, so that all who have agree on the majority."""
        of = charge.stage, charge.step, charge.attempt
        plans = {} if self._terms is None else self._terms.plans
        return plans[of] if of in plans else self._judges(charge.stage)

    def _may_charge(self, author: PeerId, charge: Charge) -> bool:
        """Whether an author's charge may count: it is of the stage."""
        return author in self._judges_at(charge)

    def _charge(
        self, member: PeerId, of: Subject | Charge, root: bytes, reason: Reason
    ) -> list[SeatEffect]:
        terms = self._terms
        if terms is None or member == self._place.me:
            return []
        known = terms.charges.of(of.stage, member, self._place.me)
        if known is not None and known.reason != "fails":
            return []
        charge = Charge(of.stage, member, of.step, of.attempt, root, reason)
        return [SignCharge(KIND, CHARGE.encode(charge))]

    def _tell_near(self, envelope: Envelope, but: PeerId | None = None) -> list[SeatEffect]:
        self._told &= self._near
        return self._tell(envelope, self._near - {but})

    def _tell(self, envelope: Envelope, peers: Collection[PeerId]) -> list[SeatEffect]:
        return [
            Send(peer, Charged(stage, envelope))
            for peer in sorted(peers)
            for stage in self._stages_of(peer)
        ]

    def _stages_of(self, peer: PeerId) -> list[int]:
        ours = self._place.stage
        near = [s for s in (ours - 1, ours, ours + 1) if 0 <= s < self._place.stages]
        return [s for s in near if any(r.peer == peer for r in self._seen.stages[s])]

    # --- time and the others --------------------------------------------------------------------

    def update_view(
        self, view: SwarmView, seen: SwarmView, whole: SwarmView, now: float
    ) -> list[SeatEffect]:
        """Give up the audit of a member that has gone; tell newcomers who is charged.

        Args:
            view: without those that are set aside.
            seen: with them.
            whole: with all who are on probation: one that counts again is no newcomer.
            now: monotonic seconds.
        """
        self._seen, case, terms = seen, self._case, self._terms
        if terms is None:
            return []
        effects: list[SeatEffect] = []
        there = {r.peer for r in view.stages[self._place.stage]}
        if case is not None and case.kept and case.subject.member not in there:
            effects += self._over(case, None, "it has left the stage", now)
        elif (
            case is not None and case.audit is None and case.auditor not in {*there, self._place.me}
        ):
            self._case = None
        ours = self._place.stage
        stages = [s for s in (ours - 1, ours, ours + 1) if 0 <= s < self._place.stages]
        present, near = (
            frozenset(r.peer for s in stages for r in of.stages[s]) - {self._place.me}
            for of in (whole, seen)
        )
        new = near - self._told
        self._near, self._told = near, near | (self._told & present)
        for kept in terms.charges.all(now) if new else ():
            effects += self._tell(kept.envelope, new)
        return [*effects, *self.verdicts(now)]

    def tick(self, now: float) -> list[SeatEffect]:
        """Lose patience with a member that shows nothing; tell charges again; free what was kept
        long enough."""
        case, effects = self._case, list[SeatEffect]()
        if case is not None and case.audit is not None:
            effects += self._perform(case.audit.tick(now), now)
        elif case is not None and case.kept and now >= case.until:
            self._case = None
        needed = None if self._case is None else self._case.subject.step
        for step in [s for s, until in self._kept.items() if until <= now]:
            if step == needed:
                self._kept[step] = now + KEPT_S
            else:
                del self._kept[step]
                self._showing.forget(step)
                effects.append(DropStep(step))
        return [*effects, *self._tell_again(now)]

    def _tell_again(self, now: float) -> list[SeatEffect]:
        effects: list[SeatEffect] = []
        due = {member for member, (_, at) in self._again.items() if at <= now}
        for kept in self._terms.charges.all(now) if due and self._terms is not None else ():
            if kept.charge.member in due and kept.envelope.signer == self._place.me:
                effects += self._tell(kept.envelope, self._near)
        for member in due:
            left = self._again.pop(member)[0] - 1
            if left:
                self._again[member] = left, now + TELL_AGAIN_S
        return effects

    # --- within ---------------------------------------------------------------------------------

    def _counts(self, plan: Plan) -> dict[PeerId, frozenset[int]]:
        per_step = self._place.per_step
        return {PeerId(m.peer): from_bitmap(m.counted, plan.step, per_step) for m in plan.members}

    def _noticed(self, plan: Plan) -> bool:
        """Whether another member has told us that it audits one of this plan."""
        if self._notice is None:
            return False
        sender, notice = self._notice
        of = (notice.step, notice.attempt) == (plan.step, plan.attempt)
        return of and notice.member not in (sender, self._place.me)

    def _sum(self, plan: Plan, segment: int) -> SumSubject:
        """Return a sum of another member; all commitments are here, for we are Ready."""
        members = [PeerId(m.peer) for m in plan.members]
        said = [self._commitments.of(member, plan.step, plan.attempt) for member in members]
        return SumSubject(
            segment=segment,
            parts=tuple((m, c.segments[segment]) for m, c in zip(members, said, strict=True) if c),
            microbatches=tuple(count_of(m.counted) for m in plan.members),
        )

    def _subject(self, plan: Plan, member: PeerId, segment: int | None) -> Subject:
        said = self._commitments.of(member, plan.step, plan.attempt)
        return Subject(
            member=member,
            stage=plan.stage,
            step=plan.step,
            attempt=plan.attempt,
            era=self._era,
            counted=self._counts(plan)[member],
            bounds=tuple(plan.bounds),
            segments=said.segments if said else (),
            held=frozenset(self._commitments.digests(member, plan.step, plan.attempt)),
            tensors=self._tensors,
            coarse=self._terms is not None and self._terms.coarse,
            mixed=self._terms is not None and self._terms.mixed,
            sum=None if segment is None else self._sum(plan, segment),
        )

    def _begin(self, now: float) -> list[SeatEffect]:
        """Begin the audit: an auditor at once, a judge when it is called."""
        case = self._case
        if case is None or not case.kept or (case.role == "judge" and not case.called):
            return []
        case.audit = Audit(case.subject, self._place.me, case.usual, now)
        return self._feed(now)

    def _feed(self, now: float) -> list[SeatEffect]:
        """Give the audit the member's commitment, if it is here and signed."""
        case, terms = self._case, self._terms
        if case is None or case.audit is None or terms is None or case.audit.root:
            return []
        of = case.subject
        said = self._commitments.of(of.member, of.step, of.attempt)
        if said is None:
            return []
        statement, envelope = statement_of(said), envelope_of(of.member, said)
        if statement is None or envelope is None:
            return []
        try:
            verify(envelope, terms.swarm)
        except RemoteProtocolError:
            self._commitments.drop(of.member, of.step, of.attempt)
            return []
        return self._perform(case.audit.committed(statement, now), now)

    def _perform(self, effects: list[AuditEffect], now: float) -> list[SeatEffect]:
        said: list[SeatEffect] = []
        for effect in effects:
            match effect:
                case AskList(member, name):
                    said.append(Send(member, self._request(name, 0)))
                case Ask(member, key):
                    whose = None if key.peer == member else PeerId(key.peer)
                    said.append(Send(member, self._request(key.name, key.item, whose)))
                case RecomputeTask() | CompareTask() | SumAgainTask():
                    self._tasks.append((effect, now + WAITS_S))
                case Judged() if self._case is not None:
                    said += self._over(self._case, effect.grade, effect.words, now)
        return said

    def _request(self, name: str, item: int, whose: PeerId | None = None) -> AuditRequest:
        if self._case is None:
            raise RuntimeError("without an audit nothing is asked for")
        of = self._case.subject
        return AuditRequest(of.stage, of.step, of.attempt, name, item, whose)  # type: ignore[arg-type]

    def _over(self, case: _Case, grade: Grade | None, words: str, now: float) -> list[SeatEffect]:
        """The audit is over: tell the judges, and draw the conclusions."""
        self._case, of, terms = None, case.subject, self._terms
        self._tasks.clear()
        if terms is None:
            return []
        effects: list[SeatEffect] = []
        agrees = grade in (None, Grade.AGREES)
        if case.role == "auditor":
            result = AuditResult(of.stage, of.step, of.attempt, of.member, agrees)
            effects += [Send(peer, result) for peer in case.others]
        if case.audit is not None or case.role == "auditor":
            effects.append(Audited(of.stage, of.member, of.step, grade, words))
        if case.audit is None:
            return effects  # it was never begun
        terms.results[grade.name.lower() if grade else "void"] += 1
        level: Literal["debug", "warning"] = "debug" if agrees else "warning"
        what = f"audit of {short(of.member)} in stage {of.stage}, step {of.step}: {words}"
        effects.append(Explain("round", what, level))
        if grade is None:
            return effects
        return [*effects, *self._conclude(case, grade, case.audit.root)]

    def _conclude(self, case: _Case, grade: Grade, root: bytes) -> list[SeatEffect]:
        of, terms = case.subject, self._terms
        if terms is None:
            return []
        record = terms.record(of.stage, of.member)
        record.note(grade)
        if record.trusted():
            return []
        effects = self._charge(of.member, of, root, record.reason)
        if effects and len(case.others) + 2 < limits.LEAST_TO_CONVICT:
            words = f"{short(of.member)} and we are alone in stage {of.stage}: nobody can decide"
            effects.append(Explain("round", words, "warning"))
        return effects

"""A seat's audits of others: a draw, the copy of a version, and what becomes of the result.

Audited is a contribution, and the sum of one segment that its author has broadcast.

An auditor draws a member when it is Ready for the step, and tells the others (never the member)
before it says so. They keep the version, too: if the auditor finds fault, they audit the same
contribution themselves, as *judges*. Whoever has found a member out charges it (``charging.py``).

Audits never stand in the way of a round: their tasks wait until the worker has nothing else to do,
for two seconds at most, and one is with the worker at a time.

State: what was drawn or announced for the step, and one audit at a time.
"""

from __future__ import annotations

from typing import Final, Literal

from protocol import limits
from protocol.audit.audit import Ask, Audit, AuditEffect, Judged, Subject
from protocol.audit.charges import Charge
from protocol.audit.commitment import envelope_of, envelope_of_piece
from protocol.audit.draw import NEW_TIMES, drawn, segment_drawn
from protocol.audit.record import Grade
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PeerId, sample, short
from protocol.membership.view import Contradicted
from protocol.pace import ANSWER_S
from protocol.pipeline.effects import AuditTask, Compute, Keep, Outcome, PayloadKey
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import Contributions, RoundEffect
from protocol.rounds.plans import active, owner
from protocol.seat.charging import Charging
from protocol.seat.effects import Audited, SeatEffect
from protocol.seat.showing import Showing
from protocol.token_bucket import Rate, TokenBuckets
from protocol.view import SwarmView
from protocol.wire.messages import (
    AuditNotice,
    AuditReply,
    AuditRequest,
    Commitment,
    Plan,
    Segment,
    Statements,
)

HEEDED: Final = 4.0
"""Announced audits of one member that are heeded at once; then as many as an honest one draws. An
announcement occupies its judges: a liar could announce audits without end, so that nobody looks
at anything else."""
MAX_HEEDED: Final = 64
MOST_HEEDED: Final = 0.5
"""Of the steps, however large the budget is."""


class Auditing:
    """See the module's docstring.

    Args:
        place: where this replica stands.
        terms: what audits go by.
        commitments: what members have committed to contribute.
        showing: what we show of our own contributions.
        charging: takes what we charge members with.
    """

    def __init__(
        self,
        place: Place,
        terms: AuditTerms,
        commitments: Commitments,
        showing: Showing,
        charging: Charging,
    ) -> None:
        self._place, self._terms, self.commitments = place, terms, commitments
        self._showing, self._charging = showing, charging
        self._drawn: tuple[int, PeerId | None] = (-1, None)
        """The step that we drew for last, and whom."""
        self._ours: AuditNotice | None = None
        """What we told others of it."""
        self._theirs: tuple[PeerId, AuditNotice] | None = None
        """The last audit that another member has announced."""
        self._closed = 0
        """Steps that we have closed."""
        self._heeded = TokenBuckets[PeerId](MAX_HEEDED)
        """Announcements of a member; the clock counts the steps that we have closed."""
        self._heeded_now = set[PeerId]()
        """Members of which one was heeded in this step: others there cost nothing."""
        self._audit: Audit | None = None
        self._task: tuple[AuditTask, float] | None = None
        """What waits for the worker, and until when."""
        self._view = SwarmView(((),) * place.stages)

    @property
    def active(self) -> bool:
        """Whether the run has audits."""
        return self._terms.budget > 0

    @property
    def step(self) -> int | None:
        """The step of our audit, whose payloads we need."""
        return None if self._audit is None else self._audit.of.plan.step

    def agreed_with(self) -> list[PeerId]:
        """Return the other replicas of the last view of our stage whose work our newest audit of
        each found in agreement."""
        records, stage = self._terms.records, self._place.stage
        here = [replica.peer for replica in self._view.stages[stage]]
        agreed = [p for p in here if (record := records.get((stage, p))) and record.agreed]
        return agreed[: limits.MAX_REPLICAS_IN_ROUND]

    # --- commitments ------------------------------------------------------------------------------

    def on_commitment(self, sender: PeerId, message: Commitment) -> list[SeatEffect]:
        """Keep a commitment; its signature was verified when it came."""
        known = self.commitments.of(sender, message.step, message.attempt)
        self.commitments.take(sender, message)
        return self._contradicted(sender, message.step, message.attempt) if known is None else []

    def on_segment(self, sender: PeerId, message: Segment, digest: bytes) -> list[SeatEffect]:
        """A contribution to a segment of ours has come, with its ``digest``."""
        self.commitments.came(sender, message, digest)
        return self._contradicted(sender, message.step, message.attempt)

    def _contradicted(self, member: PeerId, step: int, attempt: int) -> list[SeatEffect]:
        """Return the proof that a member has contributed something else than it has committed to,
        if it has signed both. Who signs only the commitment has contributed nothing: it is refused
        (``rounds/member.py``) and charged, which needs a majority."""
        said = self.commitments.of(member, step, attempt)
        came = self.commitments.other(member, step, attempt)
        if said is None or came is None:
            return []
        one, other = envelope_of(member, said), envelope_of_piece(member, came.message, came.digest)
        return [] if one is None or other is None else [Contradicted(one, other)]

    def contributed(self, plan: Plan, counted: frozenset[int]) -> list[RoundEffect]:
        """Our contribution is encoded: commit to it before anybody gets a part of it."""
        return self._showing.contributed(plan, counted) if self.active else []

    def unsigned(self, plan: Plan, member: PeerId) -> list[RoundEffect]:
        """A member has contributed something else to us than it has signed: charge it."""
        said = self.commitments.of(member, plan.step, plan.attempt)
        if said is None:
            return []
        charge = Charge(plan.stage, member, plan.step, plan.attempt, "other")
        return self._charging.charge(charge)

    def failed(self, plan: Plan) -> list[SeatEffect]:
        """We were Ready for an attempt, and it is planned anew: a member may have committed to
        something else before others than before us, so that no digest was agreed on. Pass on what
        we were told, for the others to compare."""
        me = self._place.me
        others = [PeerId(m.peer) for m in plan.members if m.peer != me]
        told = sample(others, me, plan.step, plan.attempt)
        effects: list[SeatEffect] = []
        for author in others:
            said = self.commitments.of(author, plan.step, plan.attempt)
            shown = None if said is None else envelope_of(author, said)
            if shown is not None:
                effects += [
                    Send(peer, Statements("decision", (shown,))) for peer in told if peer != author
                ]
        return effects

    # --- whom we audit ----------------------------------------------------------------------------

    def ready(self, plan: Plan, digest: bytes) -> list[RoundEffect]:
        """We are about to be Ready: draw whether a member is audited, and tell the judges.

        Args:
            plan: the plan that we follow.
            digest: for which we are Ready.
        """
        me, terms, step, counts = self._place.me, self._terms, plan.step, self._counts(plan)
        if not self.active or me not in counts or len(counts) < 2:
            return []
        if self._drawn[0] != step:
            free = self._audit is None or self._audit.stands_by
            self._drawn = step, self._draw(plan, digest) if free else None
        member, self._ours = self._drawn[1], None
        if member is None:
            return []
        owned = self._owned(plan, member)
        segment = segment_drawn(terms.secret, digest, plan.stage, step, owned)
        self._ours = AuditNotice(plan.stage, step, plan.attempt, member, segment)
        if not self._can_be_audited(plan, me, self._ours):
            return []
        return [Send(peer, self._ours) for peer in counts if peer not in (me, member)]

    def _draw(self, plan: Plan, digest: bytes) -> PeerId | None:
        """Draw one of the other members that have contributed anything, or broadcast a sum."""
        terms, stage = self._terms, plan.stage
        others = {
            peer: terms.record(stage, peer)
            for peer, counted in self._counts(plan).items()
            if peer != self._place.me and (counted or self._owned(plan, peer))
        }
        return drawn(terms.secret, digest, stage, plan.step, others, terms.budget)

    def on_notice(self, sender: PeerId, message: AuditNotice, now: float) -> list[SeatEffect]:
        """Another member audits this step's contribution of a third one, or has done so; not
        without end."""
        if message.agrees is not None:
            return self._result(sender, message, message.agrees, now)
        each = Rate(min(MOST_HEEDED, NEW_TIMES * self._terms.budget), HEEDED)
        if sender in self._heeded_now or self._heeded.take({sender: each}, self._closed):
            self._heeded_now.add(sender)
            self._theirs = sender, message
        return []

    def closing(self, plan: Plan) -> list[RoundEffect]:
        """A step is about to be applied: keep its version if one of its contributions is audited,
        by us or by another member. Our own draw comes before the word of another one."""
        me, counts = self._place.me, self._counts(plan)
        if not self.active or me not in counts or len(counts) < 2:
            return []
        self._charging.closing(plan, counts)
        self._closed += 1
        self._heeded_now.clear()
        said = Contributions(sum(peer != me and bool(counts[peer]) for peer in counts))
        if self._audit is not None and not self._audit.stands_by:
            return [said]
        if self._ours is not None and self._can_be_audited(plan, me, self._ours):
            return [said, self._keep(plan, me, self._ours)]
        if self._theirs is None or self._audit is not None:
            return [said]
        auditor, notice = self._theirs
        if auditor not in counts or not self._can_be_audited(plan, auditor, notice):
            return [said]
        return [said, self._keep(plan, auditor, notice)]

    def _can_be_audited(self, plan: Plan, auditor: PeerId, of: AuditNotice) -> bool:
        """Whether a plan has the contribution and the sum that were drawn or announced."""
        if (of.step, of.attempt) != (plan.step, plan.attempt) or self.commitments.missing(plan):
            return False
        member = PeerId(of.member)
        if member in (auditor, self._place.me):
            return False
        if of.segment is None:
            return bool(self._counts(plan).get(member))
        return of.segment in self._owned(plan, member)

    def _keep(self, plan: Plan, auditor: PeerId, of: AuditNotice) -> Compute:
        """Begin an audit; all commitments are here."""
        member, at = PeerId(of.member), (plan.step, plan.attempt)
        said = {PeerId(m.peer): self.commitments.of(PeerId(m.peer), *at) for m in plan.members}
        subject = Subject(
            plan,
            member,
            self._counts(plan)[member],
            of.segment,
            {peer: commitment for peer, commitment in said.items() if commitment is not None},
            frozenset(self.commitments.digests(member, *at)),
            self._showing.tensors,
            self._terms.coarse,
            self._terms.mixed,
        )
        self._audit, self._task = Audit(subject, self._place.me, auditor), None
        return Compute(self._audit.keep())

    def _counts(self, plan: Plan) -> dict[PeerId, frozenset[int]]:
        per_step = self._place.per_step
        return {PeerId(m.peer): from_bitmap(m.counted, plan.step, per_step) for m in plan.members}

    def _owned(self, plan: Plan, member: PeerId) -> list[int]:
        """Return the segments of an attempt whose sums a member has broadcast."""
        return [i for i in active(plan) if owner(plan, i) == member]

    # --- the audit ------------------------------------------------------------------------------

    def _result(
        self, sender: PeerId, message: AuditNotice, agrees: bool, now: float
    ) -> list[SeatEffect]:
        """The auditor has come to a result: judge it if it has found fault."""
        audit = self._audit
        if audit is None or audit.auditor != sender or not self._is_of(message, message.member):
            return []
        return self._perform(audit, audit.result(now, agrees=agrees), now)

    def on_reply(
        self, sender: PeerId, message: AuditReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what a member shows; ``digest`` of the list is the list itself."""
        audit = self._audit
        if audit is None or not self._is_of(message, sender):
            return []
        if message.name == "list":
            return self._perform(audit, audit.listed(digest, now), now)
        whose = sender if message.of is None else message.of
        key = PayloadKey(message.step, message.name, message.item, message.attempt, whose)
        if not audit.waits_for(key):
            return []
        return [Keep((key,)), *self._perform(audit, audit.shown(key, digest, now), now)]

    def _is_of(self, message: AuditReply | AuditNotice, member: str) -> bool:
        of = None if self._audit is None else self._audit.of
        said = message.step, message.attempt, member
        return of is not None and (of.plan.step, of.plan.attempt, of.member) == said

    def computed(self, task: AuditTask, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Take what a task of the audit came to."""
        audit = self._audit
        if audit is None or self.step != task.step:
            return []
        return self._perform(audit, audit.computed(task, outcome, now), now)

    def work(self, *, idle: bool, now: float) -> list[SeatEffect]:
        """Give the worker the next task, if it is idle or the task has waited long enough."""
        if self._task is None or not (idle or now >= self._task[1]):
            return []
        task, self._task = self._task[0], None
        return [Compute(task)]

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        due = [self._task[1]] if self._task is not None else []
        at = None if self._audit is None else self._audit.next_deadline()
        return min([*due, at] if at is not None else due, default=None)

    def tick(self, now: float) -> list[SeatEffect]:
        """Lose patience with a member that shows nothing, or with an auditor."""
        audit = self._audit
        return [] if audit is None else self._perform(audit, audit.tick(now), now)

    def update_view(self, view: SwarmView, seen: SwarmView, now: float) -> list[SeatEffect]:
        """Give up the audit of a member that has gone, or whose auditor has.

        Args:
            view: without those that are set aside.
            seen: with them.
            now: monotonic seconds.
        """
        self._view, audit = seen, self._audit
        if audit is None:
            return []
        there = {r.peer for r in view.stages[self._place.stage]}
        if audit.of.member not in there or (audit.stands_by and audit.auditor not in there):
            return self._perform(audit, audit.void("it has left the stage"), now)
        return []

    def _perform(self, audit: Audit, effects: list[AuditEffect], now: float) -> list[SeatEffect]:
        said, of, plan = list[SeatEffect](), audit.of, audit.of.plan
        for effect in effects:
            match effect:
                case Ask(key):
                    whose = None if key.peer == of.member else key.peer
                    at = plan.stage, plan.step, plan.attempt
                    request = AuditRequest(*at, key.name, key.item, whose)  # type: ignore[arg-type]
                    said.append(Send(of.member, request))
                case Judged():
                    said += self._over(audit, effect)
                case _:
                    self._task = effect, now + 2 * ANSWER_S
        return said

    def _over(self, audit: Audit, judged: Judged) -> list[SeatEffect]:
        """The audit is over: tell the judges, and draw the conclusions."""
        self._audit = self._task = None
        me, member, plan, grade = self._place.me, audit.of.member, audit.of.plan, judged.grade
        agrees, effects = grade in (None, Grade.AGREES), list[SeatEffect]()
        if audit.auditor == me:
            of = plan.stage, plan.step, plan.attempt, member
            result = AuditNotice(*of, agrees=agrees)
            others = (PeerId(m.peer) for m in plan.members if m.peer not in (me, member))
            effects += [Send(peer, result) for peer in others]
        elif not audit.begun:
            return []
        effects.append(Audited(plan.stage, member, plan.step, grade, judged.words))
        if not audit.begun:
            return effects
        level: Literal["debug", "warning"] = "debug" if agrees else "warning"
        what = f"audit of {short(member)} in stage {plan.stage}, step {plan.step}: {judged.words}"
        effects.append(Explain("round", what, level))
        if grade is None:
            return effects
        record = self._terms.record(plan.stage, member)
        record.note(grade, contributed=bool(audit.of.counted))
        if (reason := record.charge()) is None:
            return effects
        charge = Charge(plan.stage, member, plan.step, plan.attempt, reason)
        return [*effects, *self._charging.charge(charge)]

"""A seat's audits of others: a draw, the copy of a version, and what becomes of the result.

Audited is a contribution, and the sum of one segment that its author has broadcast.

An auditor draws a member when it is Ready for the step, and tells the others (never the member)
before it says so. All of them have the worker copy the version before the step is applied. The
auditor audits at once; the others, its *judges*, audit the same contribution once it has found
fault. Whoever has found a member out charges it (``charging.py``).

Audits never stand in the way of a round: their tasks wait until the worker has nothing else to do,
for two seconds at most, and one is with the worker at a time.

State: what was drawn or announced for the step, one copy of a version, and its audit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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
from protocol.pace import ANSWER_S, ASIDE_S
from protocol.pipeline.effects import AuditTask, Compute, Keep, KeepVersionTask, Outcome, PayloadKey
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import RoundEffect
from protocol.rounds.plans import active, owner
from protocol.seat.charging import Charging
from protocol.seat.effects import SeatEffect
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


@dataclass(slots=True)
class _Copy:
    """The copy of a version, for an audit of a contribution to its step.

    Fields:
        of: what is audited.
        auditor: who has drawn it; ourselves, or one whose judge we are.
        called: whether we audit it: we have drawn it, or its auditor has found fault.
        until: how long a judge waits to be called; None: the worker has not made the copy yet.
        audit: its audit, once the copy is made and we are called.
    """

    of: Subject
    auditor: PeerId
    called: bool
    until: float | None = None
    audit: Audit | None = None


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
        self._theirs: dict[PeerId, AuditNotice] = {}
        """The last audit that each other member has announced for this step."""
        self._closed = 0
        """Steps that we have closed."""
        self._heeded = TokenBuckets[PeerId](MAX_HEEDED)
        """Announcements of a member; the clock counts the steps that we have closed."""
        self._heeded_now = set[PeerId]()
        """Members of which one was heeded in this step: others there cost nothing."""
        self._judged = Counter[PeerId]()
        """For how many audits of a member we have kept a version."""
        self._copy: _Copy | None = None
        self._task: tuple[AuditTask, float] | None = None
        """What waits for the worker, and until when."""

    @property
    def active(self) -> bool:
        """Whether the run has audits."""
        return self._terms.budget > 0

    @property
    def step(self) -> int | None:
        """The step of our audit, whose payloads we need."""
        return None if self._copy is None else self._copy.of.plan.step

    def agreed_with(self, view: SwarmView) -> list[PeerId]:
        """Return the other replicas of our stage in a view whose work our newest audit of each
        found in agreement."""
        records, stage = self._terms.records, self._place.stage
        here = [replica.peer for replica in view.stages[stage]]
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

    def unsigned(self, plan: Plan, member: PeerId, now: float) -> list[SeatEffect]:
        """A member has contributed something else to us than it has signed: charge it."""
        if self.commitments.of(member, plan.step, plan.attempt) is None:
            return []
        charge = Charge(plan.stage, member, plan.step, plan.attempt, "other")
        return self._charging.charge(charge, now)

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
        me, terms, step = self._place.me, self._terms, plan.step
        if self._drawn[0] != step:
            self._drawn = step, None if self._is_auditing else self._draw(plan, digest)
        member, self._ours = self._drawn[1], None
        if member is None:
            return []
        owned = self._owned(plan, member)
        segment = segment_drawn(terms.secret, digest, plan.stage, step, owned)
        self._ours = AuditNotice(plan.stage, step, plan.attempt, member, segment)
        if not self._can_be_audited(plan, me, self._ours):
            return []
        others = (PeerId(m.peer) for m in plan.members if m.peer not in (me, member))
        return [Send(peer, self._ours) for peer in others]

    @property
    def _is_auditing(self) -> bool:
        return self._copy is not None and self._copy.called

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
            self._theirs[sender] = message
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
        self._terms.contributions += sum(peer != me and bool(counts[peer]) for peer in counts)
        ours = [] if self._ours is None or self._is_auditing else [(me, self._ours)]
        announced, self._theirs = self._theirs.items(), {}
        theirs = sorted(announced, key=lambda each: (self._judged[each[0]], each[0]))
        for auditor, notice in (*ours, *filter(self._is_judged, theirs)):
            if self._can_be_audited(plan, auditor, notice):
                return [self._keep(plan, auditor, notice)]
        return []

    def _is_judged(self, announced: tuple[PeerId, AuditNotice]) -> bool:
        """Whether we are free to judge an audit. A version that only waits gives way to one whose
        auditor has called on us less often: or a member could announce audits that come to nothing,
        so that nobody looks at what others find."""
        copy, auditor = self._copy, announced[0]
        if copy is None:
            return True
        return not copy.called and self._judged[auditor] < self._judged[copy.auditor]

    def _can_be_audited(self, plan: Plan, auditor: PeerId, of: AuditNotice) -> bool:
        """Whether a plan has the contribution and the sum that its member has drawn or
        announced."""
        if (of.step, of.attempt) != (plan.step, plan.attempt) or self.commitments.missing(plan):
            return False
        if all(member.peer != auditor for member in plan.members):
            return False
        member = PeerId(of.member)
        if member in (auditor, self._place.me):
            return False
        if of.segment is None:
            return bool(self._counts(plan).get(member))
        return of.segment in self._owned(plan, member)

    def _keep(self, plan: Plan, auditor: PeerId, of: AuditNotice) -> Compute:
        """Have the version copied for an audit; all commitments are here."""
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
        self._copy = _Copy(subject, auditor, called=auditor == self._place.me)
        self._judged[auditor] += 1
        if len(self._judged) > MAX_HEEDED:
            del self._judged[next(iter(self._judged))]
        return Compute(KeepVersionTask(plan.step, tuple(plan.bounds), of.segment))

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
        copy = self._copy_for(message, message.member)
        if copy is None or copy.called or copy.auditor != sender:
            return []
        if agrees:
            self._copy = None
            return []
        copy.called = True
        return self._begin(copy, now) if copy.until is not None else []

    def _copied(self, copy: _Copy, outcome: Outcome, now: float) -> list[SeatEffect]:
        """The worker has copied the version, or could not: it lacks memory, or has not seen the sum
        before."""
        if outcome.error:
            return self._over(copy, Judged(None, "the version could not be kept"), now)
        copy.until = now + ASIDE_S  # it may hear nothing of the audit
        return self._begin(copy, now) if copy.called else []

    def _begin(self, copy: _Copy, now: float) -> list[SeatEffect]:
        copy.audit = Audit(copy.of, self._place.me)
        return self._perform(copy, copy.audit.begin(now), now)

    def on_reply(
        self, sender: PeerId, message: AuditReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what a member shows; ``digest`` of the list is the list itself."""
        copy = self._copy_for(message, sender)
        if copy is None or (audit := copy.audit) is None:
            return []
        if message.name == "list":
            return self._perform(copy, audit.listed(digest, now), now)
        whose = sender if message.of is None else message.of
        key = PayloadKey(message.step, message.name, message.item, message.attempt, whose)
        if not audit.waits_for(key):
            return []
        return [Keep((key,)), *self._perform(copy, audit.shown(key, digest, now), now)]

    def _copy_for(self, message: AuditReply | AuditNotice, member: str) -> _Copy | None:
        """Return our copy, if a message is about that member's contribution to its step."""
        copy, said = self._copy, (message.step, message.attempt, member)
        if copy is None or (copy.of.plan.step, copy.of.plan.attempt, copy.of.member) != said:
            return None
        return copy

    def computed(self, task: AuditTask, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Take what a task of the audit came to."""
        copy = self._copy
        if copy is None or self.step != task.step:
            return []
        if isinstance(task, KeepVersionTask):
            return self._copied(copy, outcome, now) if copy.until is None else []
        if copy.audit is None:
            return []
        return self._perform(copy, copy.audit.computed(task, outcome, now), now)

    def work(self, *, idle: bool, now: float) -> list[SeatEffect]:
        """Give the worker the next task, if it is idle or the task has waited long enough."""
        if self._task is None or not (idle or now >= self._task[1]):
            return []
        task, self._task = self._task[0], None
        return [Compute(task)]

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        due = [] if self._task is None else [self._task[1]]
        if (copy := self._copy) is not None:
            at = copy.until if copy.audit is None else copy.audit.next_deadline()
            due += [] if at is None else [at]
        return min(due, default=None)

    def tick(self, now: float) -> list[SeatEffect]:
        """Lose patience with a member that shows nothing, or with an auditor."""
        if (copy := self._copy) is None:
            return []
        if copy.audit is not None:
            return self._perform(copy, copy.audit.tick(now), now)
        if copy.until is not None and copy.until <= now:
            self._copy = None
        return []

    def update_view(self, view: SwarmView, now: float) -> list[SeatEffect]:
        """Give up the audit of a member that has gone, or whose auditor has; ``view`` is without
        those that are set aside."""
        if (copy := self._copy) is None:
            return []
        there = {r.peer for r in view.stages[self._place.stage]}
        if copy.of.member in there and (copy.called or copy.auditor in there):
            return []
        return self._over(copy, Judged(None, "it has left the stage"), now)

    def _perform(self, copy: _Copy, effects: list[AuditEffect], now: float) -> list[SeatEffect]:
        said, of, plan = list[SeatEffect](), copy.of, copy.of.plan
        for effect in effects:
            match effect:
                case Ask(key):
                    whose = None if key.peer == of.member else key.peer
                    at = plan.stage, plan.step, plan.attempt
                    request = AuditRequest(*at, key.name, key.item, whose)  # type: ignore[arg-type]
                    said.append(Send(of.member, request))
                case Judged():
                    said += self._over(copy, effect, now)
                case _:
                    self._task = effect, now + 2 * ANSWER_S
        return said

    def _over(self, copy: _Copy, judged: Judged, now: float) -> list[SeatEffect]:
        """The audit is over: tell the judges, and draw the conclusions."""
        self._copy = self._task = None
        me, member, plan, grade = self._place.me, copy.of.member, copy.of.plan, judged.grade
        agrees, effects = grade in (None, Grade.AGREES), list[SeatEffect]()
        if copy.auditor == me:
            of = plan.stage, plan.step, plan.attempt, member
            result = AuditNotice(*of, agrees=agrees)
            others = (PeerId(m.peer) for m in plan.members if m.peer not in (me, member))
            effects += [Send(peer, result) for peer in others]
        elif copy.audit is None:
            return []
        record = self._terms.record(plan.stage, member)
        where = f"stage {plan.stage}, step {plan.step}"
        record.note(grade, f"{where}: {judged.words}", contributed=bool(copy.of.counted))
        if copy.audit is None:
            return effects
        level: Literal["debug", "warning"] = "debug" if agrees else "warning"
        words = f"audit of {short(member)} in {where}: {judged.words}"
        effects.append(Explain("round", words, level))
        if grade is None or (reason := record.charge()) is None:
            return effects
        charge = Charge(plan.stage, member, plan.step, plan.attempt, reason)
        return [*effects, *self._charging.charge(charge, now)]

"""A seat's audits of others: a draw, the copy of a version, and what becomes of the result.

Audited is a contribution, and the sum of one segment that its author has broadcast.

An auditor draws a member when it is Ready for the step, tells nobody, and has the worker copy the
version before the step is applied. Whoever has found a member out charges it (``charging.py``); the
others draw that one more often from then on.

Audits never stand in the way of a round: their tasks wait until the worker has nothing else to do,
for two seconds at most, and one is with the worker at a time.

State: what was drawn for the step, one copy of a version, and its audit.
"""

from dataclasses import dataclass
from typing import Literal

from protocol import limits
from protocol.audit.audit import Ask, Audit, AuditEffect, Judged, Subject
from protocol.audit.charges import Charge
from protocol.audit.commitment import envelope_of, envelope_of_piece
from protocol.audit.draw import drawn, segment_drawn
from protocol.audit.record import Grade
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.ids import PeerId, sample, short
from protocol.membership.view import Contradicted
from protocol.pace import ANSWER_S
from protocol.pipeline.effects import AuditTask, Compute, Keep, KeepVersionTask, Outcome, PayloadKey
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Commitments
from protocol.rounds.effects import RoundEffect
from protocol.rounds.plans import active, owner
from protocol.seat.charging import Charging
from protocol.seat.effects import SeatEffect
from protocol.seat.showing import Showing
from protocol.view import SwarmView
from protocol.wire.messages import (
    AuditReply,
    AuditRequest,
    Commitment,
    Plan,
    Segment,
    Statements,
)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Whose contribution to an attempt we audit, and which of its sums, if it owns any."""

    step: int
    attempt: int
    member: PeerId
    segment: int | None


@dataclass(slots=True)
class _Copy:
    """The copy of a version, for an audit of a contribution to its step; its audit, once the copy
    is made."""

    of: Subject
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
        self._draw: _Draw | None = None
        """The same, of the attempt that we are Ready for."""
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

    def ready(self, plan: Plan, digest: bytes) -> None:
        """We are about to be Ready: draw whether a member is audited.

        Args:
            plan: the plan that we follow.
            digest: for which we are Ready.
        """
        step = plan.step
        if self._drawn[0] != step:
            self._drawn = step, None if self._copy is not None else self._draw_of(plan, digest)
        self._draw = None
        if (member := self._drawn[1]) is not None:
            owned = self._owned(plan, member)
            segment = segment_drawn(self._terms.secret, digest, plan.stage, step, owned)
            self._draw = _Draw(step, plan.attempt, member, segment)

    def _draw_of(self, plan: Plan, digest: bytes) -> PeerId | None:
        """Draw one of the other members that have contributed anything, or broadcast a sum."""
        terms, stage = self._terms, plan.stage
        others = {
            peer: terms.record(stage, peer)
            for peer, counted in self._counts(plan).items()
            if peer != self._place.me and (counted or self._owned(plan, peer))
        }
        return drawn(terms.secret, digest, stage, plan.step, others, terms.budget)

    def closing(self, plan: Plan) -> list[RoundEffect]:
        """A step is about to be applied: keep its version if we audit one of its contributions."""
        me, counts, draw = self._place.me, self._counts(plan), self._draw
        if not self.active or me not in counts or len(counts) < 2:
            return []
        self._charging.closing(plan, counts)
        self._terms.contributions += sum(peer != me and bool(counts[peer]) for peer in counts)
        if draw is None or self._copy is not None or self.commitments.missing(plan):
            return []
        counted = counts.get(draw.member)
        if (draw.step, draw.attempt) != (plan.step, plan.attempt) or counted is None:
            return []
        return [self._keep(plan, counted, draw)] if counted or draw.segment is not None else []

    def _keep(self, plan: Plan, counted: frozenset[int], draw: _Draw) -> Compute:
        """Have the version copied for an audit; all commitments are here."""
        at = plan.step, plan.attempt
        said = {PeerId(m.peer): self.commitments.of(PeerId(m.peer), *at) for m in plan.members}
        subject = Subject(
            plan,
            draw.member,
            counted,
            draw.segment,
            {peer: commitment for peer, commitment in said.items() if commitment is not None},
            frozenset(self.commitments.digests(draw.member, *at)),
            self._showing.tensors,
            self._terms.coarse,
            self._terms.mixed,
        )
        self._copy = _Copy(subject)
        return Compute(KeepVersionTask(plan.step, tuple(plan.bounds), draw.segment))

    def _counts(self, plan: Plan) -> dict[PeerId, frozenset[int]]:
        per_step = self._place.per_step
        return {PeerId(m.peer): from_bitmap(m.counted, plan.step, per_step) for m in plan.members}

    def _owned(self, plan: Plan, member: PeerId) -> list[int]:
        """Return the segments of an attempt whose sums a member has broadcast."""
        return [i for i in active(plan) if owner(plan, i) == member]

    # --- the audit ------------------------------------------------------------------------------

    def _copied(self, copy: _Copy, outcome: Outcome, now: float) -> list[SeatEffect]:
        """The worker has copied the version, or could not: it lacks memory, or has not seen the sum
        before."""
        if outcome.error:
            return self._over(copy, Judged(None, "the version could not be kept"), now)
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

    def _copy_for(self, message: AuditReply, member: str) -> _Copy | None:
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
            return self._copied(copy, outcome, now) if copy.audit is None else []
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
        if self._copy is not None and self._copy.audit is not None:
            at = self._copy.audit.next_deadline()
            due += [] if at is None else [at]
        return min(due, default=None)

    def tick(self, now: float) -> list[SeatEffect]:
        """Lose patience with a member that shows nothing."""
        if (copy := self._copy) is None or copy.audit is None:
            return []
        return self._perform(copy, copy.audit.tick(now), now)

    def update_view(self, view: SwarmView, now: float) -> list[SeatEffect]:
        """Give up the audit of a member that has gone; ``view`` is without those that are set
        aside."""
        if (copy := self._copy) is None:
            return []
        if any(r.peer == copy.of.member for r in view.stages[self._place.stage]):
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
        """The audit is over: draw the conclusions."""
        self._copy = self._task = None
        member, plan, grade = copy.of.member, copy.of.plan, judged.grade
        record = self._terms.record(plan.stage, member)
        where = f"stage {plan.stage}, step {plan.step}"
        record.note(grade, f"{where}: {judged.words}", contributed=bool(copy.of.counted))
        if copy.audit is None:
            return []
        level: Literal["debug", "warning"] = "debug" if grade in (None, Grade.AGREES) else "warning"
        words = f"audit of {short(member)} in {where}: {judged.words}"
        said = Explain("round", words, level)
        if grade is None or (reason := record.charge()) is None:
            return [said]
        charge = Charge(plan.stage, member, plan.step, plan.attempt, reason)
        return [said, *self._charging.charge(charge, now)]

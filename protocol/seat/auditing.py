"""A seat's audits of others: a draw, the copy of a version, and what becomes of the result.

Audited is a contribution, and the sum of one segment that its author has broadcast.

An auditor draws a member when a step is closed, tells nobody, and has the worker copy the version
before the step is applied. Whoever has found a member out charges it (``charging.py``); the others
draw that one more often from then on.

Audits never stand in the way of a round: their tasks wait until the worker has nothing else to do,
for two seconds at most, and one is with the worker at a time.

State: one audit, of a version that the worker keeps a copy of.
"""

from typing import Literal

from protocol import limits
from protocol.audit.audit import Audit, AuditEffect, Judged
from protocol.audit.charges import Charge
from protocol.audit.draw import drawn, segment_drawn
from protocol.audit.record import Grade
from protocol.audit.terms import AuditTerms
from protocol.effects import Explain, Send
from protocol.evidence.statement import envelope_of
from protocol.ids import PeerId, sample, short
from protocol.pace import ANSWER_S
from protocol.pipeline.effects import AuditTask, Compute, Keep, KeepVersionTask, Outcome, PayloadKey
from protocol.pipeline.ledger import from_bitmap
from protocol.pipeline.place import Place
from protocol.rounds.commitments import Came, Commitments
from protocol.rounds.effects import RoundEffect
from protocol.rounds.plans import active, owner
from protocol.seat.charging import Charging
from protocol.seat.effects import SeatEffect
from protocol.seat.showing import Showing
from protocol.view import SwarmView
from protocol.wire.messages import (
    AuditReply,
    Plan,
    Statements,
)


class Auditing:
    """See the module's docstring."""

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
        self._audit: Audit | None = None
        self._task: tuple[AuditTask, float] | None = None
        """What waits for the worker, and until when."""

    @property
    def step(self) -> int | None:
        """The step of our audit, whose payloads we need."""
        return None if self._audit is None else self._audit.plan.step

    def agreed_with(self, view: SwarmView) -> list[PeerId]:
        """Return the other replicas of our stage in a view whose work our newest audit of each
        found in agreement."""
        records, stage = self._terms.records, self._place.stage
        here = [replica.peer for replica in view.stages[stage]]
        agreed = [p for p in here if (record := records.get((stage, p))) and record.agreed]
        return agreed[: limits.MAX_REPLICAS_IN_ROUND]

    # --- commitments ------------------------------------------------------------------------------

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

    def closing(self, plan: Plan, digest: bytes, came: Came) -> list[RoundEffect]:
        """A step is about to be applied. Draw whether we audit another member that has contributed
        anything to it, or broadcast a sum, and have the version kept for that.

        Args:
            plan: the plan that closes it.
            digest: of all that is applied.
            came: what others have contributed to our segments.
        """
        me, terms, per_step = self._place.me, self._terms, self._place.per_step
        counts = {PeerId(m.peer): from_bitmap(m.counted, plan.step, per_step) for m in plan.members}
        others = {peer: counted for peer, counted in counts.items() if peer != me}
        if not self.commitments.are_made(plan) or me not in counts:
            return []
        terms.contributions += sum(map(bool, others.values()))
        if self._audit is not None or self.commitments.missing(plan):
            return []
        owned = {peer: [i for i in active(plan) if owner(plan, i) == peer] for peer in others}
        may_be = {p: terms.record(plan.stage, p) for p in others if others[p] or owned[p]}
        of = plan.stage, plan.step
        member = drawn(terms.secret, digest, *of, may_be, terms.budget)
        if member is None:
            return []
        segment = segment_drawn(terms.secret, digest, *of, owned[member])
        at, of_peer = (plan.step, plan.attempt), self.commitments.of
        self._audit = Audit(
            plan,
            member,
            others[member],
            segment,
            me=me,
            tensors=self._showing.tensors,
            said={peer: said for peer in counts if (said := of_peer(peer, *at)) is not None},
            here=frozenset(came.get(member, ())),
            terms=terms,
        )
        return [Compute(KeepVersionTask(plan.step, tuple(plan.bounds), segment))]

    # --- the audit ------------------------------------------------------------------------------

    def on_reply(
        self, sender: PeerId, message: AuditReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what a member shows; ``digest`` of the list is the list itself."""
        audit, at = self._audit, (message.step, message.attempt)
        if audit is None or sender != audit.member:
            return []
        if at != (audit.plan.step, audit.plan.attempt):
            return []
        if message.name == "list":
            return self._perform(audit, audit.listed(digest, now), now)
        whose = sender if message.of is None else message.of
        key = PayloadKey(message.step, message.name, message.item, message.attempt, whose)
        if not audit.waits_for(key):
            return []
        return [Keep((key,)), *self._perform(audit, audit.shown(key, digest, now), now)]

    def computed(self, task: AuditTask, outcome: Outcome, now: float) -> list[SeatEffect]:
        """Take what a task of the audit came to."""
        audit = self._audit
        if audit is None or self.step != task.step:
            return []
        if not isinstance(task, KeepVersionTask):
            return self._perform(audit, audit.computed(task, outcome, now), now)
        if outcome.error:  # it lacks memory, or has not seen the sum before
            return self._over(audit, Judged(None, "the version could not be kept"), now)
        return self._perform(audit, audit.begin(now), now)

    def work(self, *, idle: bool, now: float) -> list[SeatEffect]:
        """Give the worker the next task, if it is idle or the task has waited long enough."""
        if self._task is None or not (idle or now >= self._task[1]):
            return []
        task, self._task = self._task[0], None
        return [Compute(task)]

    def tick(self, now: float) -> list[SeatEffect]:
        """Lose patience with a member that shows nothing."""
        return [] if self._audit is None else self._perform(self._audit, self._audit.tick(now), now)

    def update_view(self, view: SwarmView, now: float) -> list[SeatEffect]:
        """Give up the audit of a member that has gone; ``view`` is without those that are set
        aside."""
        if (audit := self._audit) is None:
            return []
        if any(r.peer == audit.member for r in view.stages[self._place.stage]):
            return []
        return self._over(audit, Judged(None, "it has left the stage"), now)

    def _perform(self, audit: Audit, effects: list[AuditEffect], now: float) -> list[SeatEffect]:
        said = list[SeatEffect]()
        for effect in effects:
            match effect:
                case Send():
                    said.append(effect)
                case Judged():
                    said += self._over(audit, effect, now)
                case _:
                    self._task = effect, now + 2 * ANSWER_S
        return said

    def _over(self, audit: Audit, judged: Judged, now: float) -> list[SeatEffect]:
        """The audit is over: draw the conclusions."""
        self._audit = self._task = None
        member, plan, grade = audit.member, audit.plan, judged.grade
        record = self._terms.record(plan.stage, member)
        where = f"stage {plan.stage}, step {plan.step}"
        record.note(grade, f"{where}: {judged.words}", contributed=bool(audit.counted))
        level: Literal["debug", "warning"] = "debug" if grade in (None, Grade.AGREES) else "warning"
        words = f"audit of {short(member)} in {where}: {judged.words}"
        said = Explain("round", words, level)
        if grade is None or (reason := record.charge()) is None:
            return [said]
        charge = Charge(plan.stage, member, plan.step, plan.attempt, reason)
        return [said, *self._charging.charge(charge, now)]

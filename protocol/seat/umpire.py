"""A seat as umpire: it judges a charge in a stage beside its own that is too small to judge itself.

| in | case | opened | list | payload | recomputed, weighed | nothing for 10 s, or a failure |
| --- | --- | --- | --- | --- | --- | --- |
| idle | opens the version | - | - | - | - | - |
| opens | - | asks for the list | - | - | - | no opinion |
| lists | - | - | audits | - | - | no opinion |
| audits | - | - | - | next one, or weighs | charges the member, its accuser, nobody | no opinion |

The author of the charge shows the case; what it shows counts only as far as the charged member has
signed it: the version by the digest in its commitment, the list by its root, every payload by the
list. So a case that cannot be checked is the fault of whoever shows it, and convicts nobody.

An umpire has not seen the sum of the step before, whose rounding may explain some of a difference.
It charges the member only if the most that this may have been does not explain it, and the author
only if there is no difference by the author's own word. Between, it has no opinion.

State: the open case, and how many more are taken. ``now`` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from protocol.audit.audit import Ask, AskList, Audit, AuditEffect, Judged, Subject
from protocol.audit.charges import CHARGE, KIND, MAX_AMONG, Charge
from protocol.audit.commitment import CONTENTS, STATEMENT, Statement, root_of, tensors_of
from protocol.audit.commitment import KIND as COMMITMENT
from protocol.audit.record import Grade, judge
from protocol.audit.umpires import FEWEST, Allowance
from protocol.effects import Explain, Send
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.effects import CompareTask, Outcome, PayloadKey, RecomputeTask, WeighTask
from protocol.pipeline.place import Place
from protocol.seat.auditing import AuditTerms
from protocol.seat.effects import (
    CloseCase,
    JudgeTask,
    KeepShown,
    OpenCase,
    SeatEffect,
    SignCharge,
)
from protocol.wire.envelope import verify
from protocol.wire.messages import Case, CaseReply, CaseRequest, Shown

PATIENCE_S: Final = 10.0
"""For the list, which is asked for again every ``ASK_AGAIN_S``."""
ASK_AGAIN_S: Final = 3.0
OPENING_S: Final = 600.0
"""For memory, a worker and the download together."""


@dataclass(slots=True)
class _Open:
    """The case that is judged."""

    author: PeerId
    charge: Charge
    said: Statement
    bounds: tuple[int, ...]
    before: float
    until: float
    """When patience ends, while there is no audit."""
    ask_at: float = 0.0
    opened: bool = False
    counted: int = 0
    """Microbatches of the contribution."""
    audit: Audit | None = None


def _about(charge: Charge) -> tuple[int, int, bytes]:
    """Return what makes two cases the same one."""
    return charge.stage, charge.step, charge.root


class Umpire:
    """See the module's docstring.

    Args:
        place: where our seat stands.
        terms: None: the run has no audits, and this does nothing.
        era: of the seat.
        members: returns the proven replicas of a stage beside ours.
    """

    def __init__(
        self,
        place: Place,
        terms: AuditTerms | None,
        era: int,
        members: Callable[[int], Collection[PeerId]],
    ) -> None:
        self._place, self._terms, self._era, self._members = place, terms, era, members
        self._allowance = Allowance(terms.budget if terms else 0.0)
        self._open: _Open | None = None

    @property
    def looks_into(self) -> frozenset[PeerId]:
        """The two of whom we judge a case; empty: there is none."""
        case = self._open
        return frozenset((case.author, PeerId(case.charge.member)) if case else ())

    def closed(self) -> None:
        """A step was closed."""
        self._allowance.closed()

    def next_deadline(self) -> float | None:
        """Return when ``tick`` has something to do."""
        case = self._open
        if case is None:
            return None
        if case.audit is not None:
            return case.audit.next_deadline()
        return min(case.until, case.ask_at) if case.opened else case.until

    # --- input ----------------------------------------------------------------------------------

    def on_case(self, sender: PeerId, message: Case, now: float) -> list[SeatEffect]:
        """Take a case, if we are free and it can be one; its charge is known already.

        Raises:
            RemoteProtocolError: charge or commitment is malformed, or not signed by its author.
        """
        terms = self._terms
        if terms is None or self._open is not None:
            return []
        charge = CHARGE.parse(message.charge.body)
        member, author = PeerId(charge.member), PeerId(message.charge.signer)
        known = terms.charges.of(charge.stage, member, author)
        if author != sender or known != charge or not self._concerns_us(charge, author):
            return []
        said = self._statement(message, charge)
        if said is None or not self._allowance.takes(author, _about(charge)):
            return []
        case = _Open(author, charge, said, tuple(message.bounds), message.before, now + OPENING_S)
        self._open = case
        words = f"{short(author)} charges {short(member)} in stage {charge.stage}: we look into it"
        return [
            Explain("round", words),
            OpenCase(charge.stage, charge.step, said.state, author),
        ]

    def opened(self, error: str, now: float) -> list[SeatEffect]:
        """The version of the open case is here; it cannot be, or is lost: ``error`` says why."""
        case = self._open
        if case is None:
            return []
        if error:
            self._allowance.unjudged(_about(case.charge))
            return self._no_opinion(case, error)
        case.opened, case.until = True, now + PATIENCE_S
        return self._ask_list(case, now)

    def on_case_reply(
        self, sender: PeerId, message: CaseReply, digest: bytes, now: float
    ) -> list[SeatEffect]:
        """Take what the author of a charge shows; ``digest`` of the list is the list itself."""
        case = self._open
        if case is None or not case.opened or sender != case.author:
            return []
        of = case.charge
        if (message.step, message.attempt, message.member) != (of.step, of.attempt, of.member):
            return []
        if message.name == "list":
            return self._listed(case, digest, now)
        key = self._key(case, message.name, message.item)
        if case.audit is None or not case.audit.waits_for(key):
            return []
        return [KeepShown(key), *self._perform(case, case.audit.shown(key, digest, now))]

    def computed(
        self, task: RecomputeTask | WeighTask, outcome: Outcome, now: float
    ) -> list[SeatEffect]:
        """Take what a task came to."""
        case = self._open
        if case is None or case.audit is None or task.step != case.charge.step:
            return []
        if outcome.error:
            return self._no_opinion(case, f"it could not be computed: {outcome.error}")
        if isinstance(task, RecomputeTask):
            return self._perform(case, case.audit.recomputed(*outcome.apart, now))
        return self._weighed(case, outcome)

    def tick(self, now: float) -> list[SeatEffect]:
        """Ask again, and lose patience in the end."""
        case, due = self._open, self.next_deadline()
        if case is None or due is None or now < due:
            return []
        if case.audit is not None:
            return self._perform(case, case.audit.tick(now))
        if now >= case.until:
            return self._no_opinion(case, "it is not shown in time")
        return self._ask_list(case, now)

    def expelled(self, member: PeerId) -> list[SeatEffect]:
        """A member is out: nobody waits for what we find of it."""
        case = self._open
        if case is None or member not in (case.charge.member, case.author):
            return []
        return self._end()

    # --- within ---------------------------------------------------------------------------------

    def _concerns_us(self, charge: Charge, author: PeerId) -> bool:
        """Whether a charge is of one of two members of a stage beside ours against the other."""
        if abs(charge.stage - self._place.stage) != 1 or charge.reason != "lies":
            return False
        there = set(self._members(charge.stage))
        both = {author, PeerId(charge.member)}
        return both <= there and len(there) < FEWEST and self._place.me not in there

    def _statement(self, message: Case, charge: Charge) -> Statement | None:
        """Return what the charged member has signed; None if the charge is not about that."""
        shown, swarm = message.commitment, self._terms.swarm if self._terms else None
        if swarm is None or (shown.signer, shown.kind) != (charge.member, COMMITMENT):
            return None
        said = STATEMENT.parse(shown.body)
        of = (said.stage, said.step, said.attempt, said.root)
        if of != (charge.stage, charge.step, charge.attempt, charge.root):
            return None
        bounds = message.bounds
        cut = len(bounds) == len(said.segments) + 1 and bounds[0] == 0
        if said.era != self._era or not said.state or not cut:
            return None
        if any(b < a for a, b in pairwise(bounds)):
            return None
        verify(shown, swarm)
        return said

    def _ask_list(self, case: _Open, now: float) -> list[SeatEffect]:
        case.ask_at = now + ASK_AGAIN_S
        return [self._ask(case, "list", 0)]

    def _ask(self, case: _Open, name: Shown, item: int) -> Send:
        of, ours = case.charge, self._place.stage
        request = CaseRequest(of.stage, ours, of.step, of.attempt, of.member, name, item)
        return Send(case.author, request)

    def _listed(self, case: _Open, encoded: bytes, now: float) -> list[SeatEffect]:
        """Begin the audit of what the list names."""
        if case.audit is not None or root_of(encoded) != case.said.root:
            return []
        try:
            rows = CONTENTS.parse(encoded).microbatches
        except RemoteProtocolError:
            return self._no_opinion(case, "its list is malformed")
        step, per_step = case.charge.step, self._place.per_step
        counted = frozenset(row.microbatch for row in rows)
        if not counted or not counted <= frozenset(range(step * per_step, (step + 1) * per_step)):
            return self._no_opinion(case, "its list is not of the step")
        case.counted = len(counted)
        case.audit = Audit(self._subject(case, counted), now)
        begun = case.audit.committed(case.said, now)
        effects = [effect for effect in begun if not isinstance(effect, AskList)]
        return self._perform(case, [*effects, *case.audit.listed(encoded, now)])

    def _subject(self, case: _Open, counted: frozenset[int]) -> Subject:
        of, stage = case.said, case.charge.stage
        last, packed = stage == self._place.stages - 1, self._place.packed
        return Subject(
            member=PeerId(case.charge.member),
            stage=stage,
            step=of.step,
            attempt=of.attempt,
            era=of.era,
            counted=counted,
            bounds=case.bounds,
            segments=of.segments,
            held=(),
            tensors=tensors_of(first=stage == 0, last=last, packed=packed),
            coarse=self._terms is not None and self._terms.coarse,
            mixed=self._terms is not None and self._terms.mixed,
        )

    def _key(self, case: _Open, name: Shown, item: int) -> PayloadKey:
        of = case.charge
        return PayloadKey(of.step, name, item, of.attempt, of.member)  # type: ignore[arg-type]

    def _perform(self, case: _Open, effects: list[AuditEffect]) -> list[SeatEffect]:
        said: list[SeatEffect] = []
        for effect in effects:
            match effect:
                case Ask(_, key):
                    said.append(self._ask(case, key.name, key.item))  # type: ignore[arg-type]
                case RecomputeTask():
                    said.append(JudgeTask(effect))
                case CompareTask():
                    said.append(JudgeTask(self._weigh(case, effect)))
                case Judged(_, _, _, words):  # nothing was weighed: it was not shown as signed
                    said += self._no_opinion(case, words)
                case _:
                    pass
        return said

    def _weigh(self, case: _Open, task: CompareTask) -> WeighTask:
        what = task.step, task.attempt, task.bounds, task.segments
        return WeighTask(*what, case.before, case.counted / self._place.per_step)

    def _weighed(self, case: _Open, outcome: Outcome) -> list[SeatEffect]:
        """Charge the member, or the author of the charge, or nobody."""
        audit, terms = case.audit, self._terms
        if audit is None or terms is None:
            return []
        how = {"coarse": terms.coarse, "mixed": terms.mixed}
        at_least = judge(audit.boundary, *outcome.apart, **how)
        told = judge(audit.boundary, *outcome.told, **how)
        numbers = f"tensors {audit.boundary:.1e}, contribution {outcome.apart[0]:.1e}"
        if at_least is Grade.LIES:
            return self._charge(case, PeerId(case.charge.member), "lies", numbers)
        if told is Grade.AGREES:
            return self._charge(case, case.author, "accuses", numbers)
        return self._no_opinion(case, f"the difference may be rounding: {numbers}")

    def _charge(
        self, case: _Open, member: PeerId, reason: Literal["lies", "accuses"], numbers: str
    ) -> list[SeatEffect]:
        of, ours = case.charge, self._place.stage
        judges = {*self._members(of.stage), *self._members(ours), self._place.me}
        among = min(len(judges), MAX_AMONG)
        charge = Charge(of.stage, member, of.step, of.attempt, of.root, reason, among)
        what = "it lies" if reason == "lies" else "its charge is false"
        words = f"stage {of.stage}, step {of.step}: we charge {short(member)}, {what} ({numbers})"
        signed = SignCharge(KIND, CHARGE.encode(charge))
        return [Explain("round", words, "warning"), signed, *self._end()]

    def _no_opinion(self, case: _Open, why: str) -> list[SeatEffect]:
        of = case.charge
        who = f"{short(case.author)} and {short(PeerId(of.member))}"
        words = f"no opinion on {who} in stage {of.stage}: {why}"
        return [Explain("round", words), *self._end()]

    def _end(self) -> list[SeatEffect]:
        self._open = None
        return [CloseCase()]

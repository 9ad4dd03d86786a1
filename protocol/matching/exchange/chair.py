"""The chair of full epochs, run by the steward of stage 0: calls epochs, counts and decides.

    IDLE      watches the postings
    COLLECT   boxes are open, votes come in; LATE: missing voters stay at home
    FREEZE    the vote has come to rest; the boxes publish its result
    COMMIT    the plan pays and is attested; the decision waits for its own attestation

A plan that does not pay leads to the next lower quota, and after the last quota to ABORT. A box
that fell silent or was replaced leads to another attempt at the same quota. State: the phase and
the end of the last epoch. Everything else is read from the records, so a successor can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol import limits
from protocol.effects import Effect, Explain, Publish
from protocol.matching.bodies import Mandate, encode_body
from protocol.matching.context import Context
from protocol.matching.exchange import bodies, tally
from protocol.matching.exchange.bodies import (
    ABORT,
    COLLECT,
    COMMIT,
    EPOCH_KIND,
    FREEZE,
    LATE,
    MAX_ATTEMPTS,
    MAX_NUMBER,
    NO_DIGEST,
    RUNNING,
    Epoch,
    EpochId,
    Round,
)
from protocol.matching.exchange.pledges import Pledges
from protocol.matching.exchange.registry import CHAIR_STAGE, Registry
from protocol.matching.exchange.tally import Ballots
from protocol.matching.exchange.timing import (
    AFTER_ABORT_S,
    COLLECT_S,
    DECIDED_S,
    EMERGENCY_GAP_S,
    EPOCH_GAP_S,
    FREEZE_S,
    LATE_S,
    NEWCOMERS_S,
    OPENING_S,
)
from protocol.matching.exchange.verdict import Verdict
from protocol.matching.exchange.wishes import LADDER_PERCENT
from protocol.matching.preferences import words

INFINITY = float("inf")
PATIENCE_S = {COLLECT: OPENING_S, LATE: LATE_S, FREEZE: FREEZE_S, COMMIT: DECIDED_S}
IDLE = ABORT
"""A chair begins in the phase in which an aborted epoch ends."""


UNEVEN_PERCENT = 90
"""A lowest stage below this share of the mean is a reason for an epoch."""

LITTLE_PERCENT = 2
"""Changes of a level below this share are ignored."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of all stages: levels after dual homing, and copies."""

    levels: tuple[int, ...]
    copies: tuple[int, ...]

    def differs(self, other: Condition) -> bool:
        """Tell whether a level changed clearly, or a number of copies at all."""
        moved = any(
            abs(mine - its) * 100 > LITTLE_PERCENT * its
            for mine, its in zip(self.levels, other.levels, strict=True)
        )
        return moved or self.copies != other.copies


@dataclass(frozen=True, slots=True)
class Grievance:
    """Why an epoch is due."""

    words: str
    urgent: bool


def grievance_of(condition: Condition, r: int) -> Grievance | None:
    """Return why the present matching needs an epoch, or None."""
    copies = condition.copies
    short = min(range(len(copies)), key=lambda s: (copies[s], s))
    spare = max(copies) > min(r, copies[short] + 1)
    if copies[short] < r and spare:
        return Grievance(f"stage {short} has {copies[short]} of {r} replicas", urgent=True)
    return _uneven(condition.levels)


def _uneven(levels: Sequence[int]) -> Grievance | None:
    lowest, mean = min(levels), sum(levels) // len(levels)
    if lowest * 100 >= mean * UNEVEN_PERCENT:
        return None
    stage = levels.index(lowest)
    return Grievance(f"stage {stage} has {words(lowest)}, the mean is {words(mean)}", urgent=False)


@dataclass(frozen=True, slots=True)
class Last:
    """The last epoch, as far as the time of the next one depends on it."""

    ended_at: float
    condition: Condition
    aborted: bool


def due_at(now: Condition, grievance: Grievance, since: float, last: Last | None) -> float:
    """Return when an epoch may be called, monotonic seconds.

    Args:
        now: the present condition of the stages.
        grievance: why an epoch is needed.
        since: when it was first needed, monotonic seconds.
        last: the last epoch; None before the first.
    """
    if last is None:
        return since + EMERGENCY_GAP_S
    if not now.differs(last.condition):
        return last.ended_at + AFTER_ABORT_S
    gap_s = EMERGENCY_GAP_S if grievance.urgent else EPOCH_GAP_S
    return max(last.ended_at + gap_s, since + EMERGENCY_GAP_S)


class Chair:
    """Machine of one chair, under one mandate of the steward of stage 0.

    Args:
        context: population, board and wall clock of this peer's matching.
        registry: records of the exchange.
        pledges: digests that this peer has signed.
        mandate: the mandate of stage 0.
        has_majority: whether this peer sees a majority of the last members.
    """

    def __init__(
        self,
        context: Context,
        registry: Registry,
        pledges: Pledges,
        mandate: Mandate,
        has_majority: Callable[[], bool],
    ) -> None:
        self.mandate = mandate
        self.phase = IDLE
        self._context = context
        self._has_majority = has_majority
        self._registry = registry
        self._pledges = pledges
        self._round = Round(EpochId(*mandate, 1), 1)
        self._number = 0
        self._quota_percent = LADDER_PERCENT[0]
        self._fair, self._r = 0, 1
        self._digest_of_freeze = NO_DIGEST
        self._began_with: Condition | None = None
        self._deadline = INFINITY
        self._all_open = False
        self._known: Round | None = None
        """The last decision before our call."""
        self._since: float | None = None
        self._last: Last | None = None
        self._due_at = INFINITY

    # --- inputs -----------------------------------------------------------------------------

    def look(self, now: float) -> list[Effect]:
        """Look at postings and records."""
        if self.phase in RUNNING:
            return self._advance(now)
        if self.phase == COMMIT:
            return self._await_attestation(now)
        return self._consider(now)

    def next_deadline(self) -> float:
        """Return when ``look`` has something to do without a change, monotonic seconds."""
        return self._due_at if self.phase == IDLE else self._deadline

    # --- calling ----------------------------------------------------------------------------

    def _consider(self, now: float) -> list[Effect]:
        """Call an epoch if one is due, or continue one that another chair left unfinished."""
        self._due_at = INFINITY
        condition = self._condition(now)
        if condition is None or not self._context.population.design.epochs:
            return []
        left = self._registry.unfinished(now)
        if left and left.round.epoch[:2] < self.mandate:
            return self._call(now, left.quota_percent, "another chair left it unfinished")
        grievance = grievance_of(condition, self._context.population.redundancy)
        if grievance is None:
            self._since = None
            return []
        if self._since is None:
            self._since = now
        if self._newcomers(now) and now < self._since + NEWCOMERS_S:
            self._due_at = self._since + NEWCOMERS_S
            return []
        self._due_at = due_at(condition, grievance, self._since, self._last)
        if now < self._due_at:
            return []
        return self._call(now, LADDER_PERCENT[0], grievance.words)

    def _condition(self, now: float) -> Condition | None:
        """Return the stages' condition; None while a posting is missing or no stage is served."""
        notices = self._context.board.notices(now)
        levels = self._context.board.levels(now)
        if not levels or not any(notice.posting.locked_replicas for notice in notices.values()):
            return None
        return Condition(levels, tuple(notice.posting.copies for notice in notices.values()))

    def _newcomers(self, now: float) -> bool:
        """Tell whether a newcomer has no place yet; its arrival may make an epoch needless."""
        notices = self._context.board.notices(now).values()
        placed = sum(notice.posting.locked_replicas for notice in notices)
        return placed < self._context.population.able

    def _call(self, now: float, quota_percent: int, why: str) -> list[Effect]:
        if not self._has_majority() or self._number == MAX_NUMBER:
            self._due_at = now + EMERGENCY_GAP_S
            return []
        notices = self._context.board.notices(now)
        decision = self._registry.decision(now)
        self._known = decision.epoch.round if decision else None
        self._number += 1
        self._round = Round(EpochId(*self.mandate, self._number), 1)
        self._quota_percent, self._since = quota_percent, None
        levels = [notice.posting.locked_level for notice in notices.values()]
        self._fair = sum(levels) // len(levels)
        self._r = self._context.population.redundancy
        said = Explain("matching", f"calling a full epoch: {why}")
        return [said, *self._enter(COLLECT, now, why)]

    # --- counting ---------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        decision = self._registry.decision(now, after=self._known)
        if decision and decision.epoch.round < self._round:
            return self._end(now, "an earlier epoch was decided after all")
        if not self._has_majority():
            return self._end(now, "we see no majority of the swarm")
        deserted = self._registry.deserted(self._round, now)
        if deserted is not None:
            return self._restart(now, f"stage {deserted} has another steward")
        ballots = self._registry.ballots(self._round, now)
        whole = self._registry.is_whole(ballots)
        if self.phase == FREEZE and whole:
            return self._weigh(ballots, now)
        if self.phase == COLLECT and whole and not self._all_open:
            self._all_open, self._deadline = True, now + COLLECT_S
        if self.phase != FREEZE and whole and tally.is_quiet(ballots):
            return self._enter(FREEZE, now, "all have voted", tally.fingerprint(ballots))
        return self._overdue(now) if now >= self._deadline else []

    def _overdue(self, now: float) -> list[Effect]:
        if self.phase == COLLECT:
            return self._enter(LATE, now, "not everybody has voted in time")
        return self._restart(now, "the vote did not come to rest in time")

    def _restart(self, now: float, why: str) -> list[Effect]:
        """Vote again at the same quota."""
        if self._round.attempt == MAX_ATTEMPTS:
            return self._end(now, why)
        self._round = self._round._replace(attempt=self._round.attempt + 1)
        return [
            Explain("matching", f"voting again: {why}", "debug"),
            *self._enter(COLLECT, now, why),
        ]

    # --- deciding ---------------------------------------------------------------------------

    def _weigh(self, ballots: Ballots, now: float) -> list[Effect]:
        """Apply the commit rule once all ballots are frozen."""
        plans = tally.stage_plans(ballots)
        if plans is None:
            return self._overdue(now) if now >= self._deadline else []
        if not tally.is_quiet(ballots) or tally.fingerprint(ballots) != self._digest_of_freeze:
            return self._restart(now, "somebody left while the votes were counted")
        verdict = self._registry.verdict(self._epoch(now, FREEZE, ""), ballots)
        if verdict is None or not verdict.adopted:
            return self._next_quota(verdict, now)
        condition = self._condition(now)
        if condition is None or condition.copies != (self._began_with or condition).copies:
            return self._restart(now, "somebody came or went meanwhile")
        if not self._all_attested(ballots):
            return self._overdue(now) if now >= self._deadline else []
        return self._commit(ballots, verdict, now)

    def _all_attested(self, ballots: Ballots) -> bool:
        return all(
            self._registry.is_attested(self._round, stage, author, tally.plan_of(ballot))
            for stage, (author, ballot) in ballots.items()
        )

    def _commit(self, ballots: Ballots, verdict: Verdict, now: float) -> list[Effect]:
        digest = tally.whole_plan(self._round, ballots)
        if not self._pledges.sign(self._round, CHAIR_STAGE, digest, decision=True):
            return self._end(now, "we have signed another decision")
        said = Explain("matching", f"{self._at_quota} {verdict.words}: adopted")
        return [said, *self._enter(COMMIT, now, verdict.words, digest)]

    def _next_quota(self, verdict: Verdict | None, now: float) -> list[Effect]:
        why = verdict.words if verdict else "nothing to judge"
        said = Explain("matching", f"{self._at_quota} {why}: not worth it")
        lower = [percent for percent in LADDER_PERCENT if percent < self._quota_percent]
        if not lower or self._round.attempt == MAX_ATTEMPTS:
            return [said, *self._end(now, why)]
        self._quota_percent = lower[0]
        self._round = self._round._replace(attempt=self._round.attempt + 1)
        return [said, *self._enter(COLLECT, now, f"at the higher quota {why}")]

    def _await_attestation(self, now: float) -> list[Effect]:
        decision = self._registry.decision(now)
        if decision and decision.epoch.round >= self._round:
            self._rest(now, aborted=False)
            return []
        if now < self._deadline:
            return []
        self._rest(now, aborted=True)
        return [Explain("matching", "nobody attested our decision: it is void", "warning")]

    def _end(self, now: float, why: str) -> list[Effect]:
        """Abort the epoch: no seat changes."""
        found = self._enter(ABORT, now, why)
        self._rest(now, aborted=True)
        return [Explain("matching", f"the full epoch changes nothing: {why}"), *found]

    def _rest(self, now: float, *, aborted: bool) -> None:
        condition = self._condition(now)
        self.phase, self._since = IDLE, None
        self._due_at = INFINITY
        if condition:
            self._last = Last(now, condition, aborted)

    # --- outputs ----------------------------------------------------------------------------

    @property
    def _at_quota(self) -> str:
        return f"full epoch at {self._quota_percent} % of the mean:"

    def _enter(self, phase: int, now: float, why: str, digest: bytes = NO_DIGEST) -> list[Effect]:
        self.phase, self._all_open = phase, False
        self._digest_of_freeze = digest
        if phase == COLLECT:
            self._began_with = self._condition(now)
        self._deadline = now + PATIENCE_S.get(phase, INFINITY)
        body = self._epoch(now, phase, why, digest)
        number = body.issued_ms
        return [Publish(EPOCH_KIND, bodies.key_of(body), number, encode_body(body))]

    def _epoch(self, now: float, phase: int, why: str, digest: bytes = NO_DIGEST) -> Epoch:
        return Epoch(
            stage=CHAIR_STAGE,
            mandate=self.mandate,
            issued_ms=self._context.number(now),
            round=self._round,
            phase=phase,
            quota_percent=self._quota_percent,
            fair=self._fair,
            r=self._r,
            digest=digest,
            reason=why[: limits.MAX_REASON_CHARS],
        )

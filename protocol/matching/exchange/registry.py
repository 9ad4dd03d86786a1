"""The registry: one peer's records of full epochs, and which of them it believes.

State: for every stage the newest ballot and attestations of a few authors. A record is kept even if
its author is not believed yet, because the author may enter the view later. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from protocol.ids import PeerId, Stage
from protocol.matching.bodies import stage_of
from protocol.matching.context import Context
from protocol.matching.exchange import tally
from protocol.matching.exchange.bodies import (
    COMMIT,
    RUNNING,
    Attest,
    Ballot,
    Epoch,
    EpochId,
    Round,
    Spread,
)
from protocol.matching.exchange.tally import Ballots
from protocol.matching.exchange.timing import RECORD_S
from protocol.matching.exchange.verdict import Verdict, judge
from protocol.matching.population import Population

AUTHORS = 8
"""Authors kept per kind of record and stage; up to three of them are believed."""
CHAIR_STAGE = Stage(0)


class Shelf(NamedTuple):
    """Key of the records of one kind about one stage."""

    kind: type[Spread]
    stage: Stage
    decision: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """A record with its time of arrival (monotonic seconds)."""

    author: PeerId
    body: Spread
    received_at: float


@dataclass(frozen=True, slots=True)
class Call:
    """The newest record of the present chair."""

    chair: PeerId
    epoch: Epoch
    received_at: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A COMMIT with its ballots; the decision and each ballot are attested."""

    chair: PeerId
    epoch: Epoch
    ballots: Ballots


class Registry:
    """Records by kind, stage and author."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shelves: dict[Shelf, dict[PeerId, Kept]] = {}
        self._views: dict[EpochId, Population] = {}
        """The view when an epoch was first heard of; it fixes the candidates that may attest."""
        self._quiet_from = 0.0
        self.revision = 0
        """Incremented by every record."""

    def pin(self, author: PeerId, body: Spread, now: float) -> bool:
        """Keep a record (``body``) received at ``now``; return False if ``author`` has sent a newer
        one."""
        decision = isinstance(body, Attest) and body.decision
        shelf = self._shelves.setdefault(Shelf(type(body), stage_of(body), decision), {})
        known = shelf.get(author)
        if known and body.issued_ms <= known.body.issued_ms:
            return False
        shelf[author] = Kept(author, body, now)
        self.revision += 1
        if len(shelf) > AUTHORS:
            del shelf[min(shelf, key=lambda peer: self._worth(shelf[peer]))]
        self._remember_view(body.round.epoch)
        self._quiet_from = max(self._quiet_from, now + RECORD_S)
        return True

    def forget_after(self, newest_ms: int) -> None:
        """Drop records issued later: the clock was set back, and nothing would replace them."""
        for name, shelf in self._shelves.items():
            kept = {peer: k for peer, k in shelf.items() if k.body.issued_ms <= newest_ms}
            self._shelves[name] = kept
        self.revision += 1

    def is_idle(self, now: float) -> bool:
        """Tell whether all records have expired."""
        return now >= self._quiet_from

    def candidates(self, stage: Stage, epoch: EpochId) -> frozenset[PeerId]:
        """Return the peers that may speak for a stage in an epoch."""
        current = self._context.population
        start = self._views.get(epoch, current)
        return start.candidates(stage, epoch.beacon) | current.candidates(stage, epoch.beacon)

    def witnesses(self, stage: Stage, epoch: EpochId) -> tuple[PeerId, ...]:
        """Return the three candidates; two of them must agree."""
        start = self._views.get(epoch, self._context.population)
        return start.succession(stage, epoch.beacon)

    # --- the chair --------------------------------------------------------------------------

    def call(self, now: float) -> Call | None:
        """Return the newest record of the present chair under its present mandate."""
        notice = self._context.board.current(CHAIR_STAGE, now)
        if notice is None:
            return None
        kept = self._shelf(Epoch, CHAIR_STAGE).get(notice.author)
        if kept is None or not isinstance(kept.body, Epoch) or now >= kept.received_at + RECORD_S:
            return None
        if kept.body.round.epoch[:2] != notice.posting.mandate:
            return None
        return Call(kept.author, kept.body, kept.received_at)

    def unfinished(self, now: float) -> Epoch | None:
        """Return the newest epoch of any chair that is neither aborted nor decided."""
        found = [body for _, body in self._epochs(now)]
        newest = max(found, key=lambda body: body.round, default=None)
        if newest is None or newest.phase not in (*RUNNING, COMMIT):
            return None
        decision = self.decision(now)
        decided = decision is not None and decision.epoch.round >= newest.round
        return None if decided else newest

    # --- the boxes --------------------------------------------------------------------------

    def ballots(self, round_: Round, now: float) -> Ballots:
        """Return the ballots of an attempt by the stages' present stewards."""
        notices = self._context.board.notices(now)
        found = {}
        for stage, notice in notices.items():
            kept = self._shelf(Ballot, stage).get(notice.author)
            if kept and isinstance(kept.body, Ballot) and kept.body.round == round_:
                found[stage] = (kept.author, kept.body)
        return found

    def ballot(self, round_: Round, stage: Stage, now: float) -> Ballot | None:
        """Return the ballot of ``stage`` in ``round_`` by its present steward, or None.

        Args:
            round_: epoch and attempt.
            stage: the stage.
            now: monotonic seconds.
        """
        notice = self._context.board.current(stage, now)
        kept = self._shelf(Ballot, stage).get(notice.author) if notice else None
        if kept and isinstance(kept.body, Ballot) and kept.body.round == round_:
            return kept.body
        return None

    def is_whole(self, ballots: Ballots) -> bool:
        """Tell whether every stage has a ballot."""
        return len(ballots) == len(self._context.population.costs)

    def deserted(self, round_: Round, now: float) -> Stage | None:
        """Return a stage whose ballot comes from a steward that has been replaced, or None."""
        for stage, notice in self._context.board.notices(now).items():
            shelf = self._shelf(Ballot, stage)
            authors = [p for p, kept in shelf.items() if kept.body.round == round_]
            if authors and notice.author not in authors:
                return stage
        return None

    # --- certificates -----------------------------------------------------------------------

    def is_attested(
        self, round_: Round, stage: Stage, author: PeerId, digest: bytes, *, decision: bool = False
    ) -> bool:
        """Tell whether another candidate has signed the same digest, or there is no other.

        Args:
            round_: the attempt.
            stage: the stage the record is about.
            author: the record's author.
            digest: of the record, 32 bytes.
            decision: True for the chair's decision, False for a stage's plan.
        """
        candidates = self.candidates(stage, round_.epoch)
        if not candidates - {author}:
            return True
        return any(
            isinstance(kept.body, Attest)
            and (kept.body.round, kept.body.digest) == (round_, digest)
            and kept.author in candidates - {author}
            for kept in self._shelf(Attest, stage, decision=decision).values()
        )

    def plan(self, round_: Round) -> Ballots:
        """Return the attested frozen ballots of an attempt, also by former stewards."""
        found: dict[Stage, tuple[PeerId, Ballot]] = {}
        for stage in map(Stage, self._context.population.stages):
            for author, kept in sorted(self._shelf(Ballot, stage).items()):
                body = kept.body
                if isinstance(body, Ballot) and body.round == round_ and body.projection:
                    believed = author in self.candidates(stage, round_.epoch)
                    digest = tally.plan_of(body)
                    if believed and self.is_attested(round_, stage, author, digest):
                        found[stage] = (author, body)
        return found

    def verdict(self, epoch: Epoch, ballots: Ballots) -> Verdict | None:
        """Return the commit rule's verdict on a plan; None if a ballot is missing."""
        plans = tally.stage_plans(ballots) if self.is_whole(ballots) else None
        return judge(plans, epoch.r, self._context.population.design) if plans else None

    def decision(self, now: float, after: Round | None = None) -> Decision | None:
        """Return the newest attested decision; one that breaks the commit rule is only counted.

        Args:
            now: monotonic seconds.
            after: ignore decisions up to this attempt.
        """
        shelf = self._shelf(Epoch, CHAIR_STAGE)
        if not any(_is_commit(kept.body, after) for kept in shelf.values()):
            return None
        commits = [(k.author, body) for k, body in self._epochs(now) if _is_commit(body, after)]
        for chair, epoch in sorted(commits, key=lambda pair: pair[1].round, reverse=True):
            round_ = epoch.round
            if not self.is_attested(round_, CHAIR_STAGE, chair, epoch.digest, decision=True):
                continue
            ballots = self.plan(round_)
            verdict = self.verdict(epoch, ballots)
            if verdict is None or tally.whole_plan(round_, ballots) != epoch.digest:
                continue
            if verdict.adopted:
                return Decision(chair, epoch, ballots)
            self._context.counters["matching-decision-against-ballots"] += 1
        return None

    # --- inside -----------------------------------------------------------------------------

    def _shelf(
        self, kind: type[Spread], stage: Stage, *, decision: bool = False
    ) -> dict[PeerId, Kept]:
        return self._shelves.get(Shelf(kind, stage, decision), {})

    def _epochs(self, now: float) -> Iterator[tuple[Kept, Epoch]]:
        for kept in self._shelf(Epoch, CHAIR_STAGE).values():
            body = kept.body
            fresh = now < kept.received_at + RECORD_S
            if isinstance(body, Epoch) and fresh and self._may_chair(kept.author, body):
                yield kept, body

    def _may_chair(self, author: PeerId, epoch: Epoch) -> bool:
        return author in self.candidates(CHAIR_STAGE, epoch.round.epoch)

    def _remember_view(self, epoch: EpochId) -> None:
        if epoch in self._views:
            return
        self._views[epoch] = self._context.population
        if len(self._views) > AUTHORS:
            del self._views[min(self._views)]

    def _worth(self, kept: Kept) -> tuple[bool, int]:
        known = kept.author in self.candidates(stage_of(kept.body), kept.body.round.epoch)
        return (known, kept.body.issued_ms)


def _is_commit(body: Spread, after: Round | None) -> bool:
    late = after is None or body.round > after
    return isinstance(body, Epoch) and body.phase == COMMIT and late

"""Permits for single moves: a steward's answers to replicas that want to come or go.

Until a permit lapses or the move shows, the stage that consents counts the mover as gone and the
stage that accepts it counts it as present, so that two moves that each pay do no harm together.
Both stewards judge by the same postings; neither can force the other. A steward that does not see
the majority of the swarm grants nothing. State: the open permits.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol import limits
from protocol.effects import SendLetter
from protocol.ids import PeerId, Stage
from protocol.matching import bodies, gain
from protocol.matching.board import stage_levels
from protocol.matching.bodies import Mandate
from protocol.matching.context import Context
from protocol.matching.gain import Move
from protocol.matching.timing import PERMIT_S


@dataclass(frozen=True, slots=True)
class _Permit:
    version: int
    until: float


class MovePermits:
    """Answers ``Transfer`` and ``Release`` for one stage."""

    def __init__(self, context: Context, stage: Stage) -> None:
        self._context, self._stage = context, stage
        self._open: dict[PeerId, _Permit] = {}

    def permits(self, peer: PeerId, now: float) -> bool:
        """Tell whether a replica has an open permit to come or go."""
        permit = self._open.get(peer)
        return permit is not None and permit.until > now

    def receive(
        self, sender: PeerId, body: bodies.AboutMove, mandate: Mandate, now: float
    ) -> list[SendLetter]:
        """Answer a request; a repeated one gets the same answer.

        Args:
            sender: the request's verified signer.
            body: ``Transfer`` or ``Release``.
            mandate: our mandate.
            now: monotonic seconds.
        """
        if body.steward != self._context.me or body.mandate != mandate:
            self._context.counters["matching-other-mandate"] += 1
            return []
        if sender not in self._context.population:
            self._context.counters["matching-unknown-member"] += 1
            return []
        self._open = {peer: p for peer, p in self._open.items() if p.until > now}
        known = self._open.get(sender)
        if known is not None and body.version < known.version:
            self._context.counters["matching-replay"] += 1
            return []
        repeated = known is not None and body.version == known.version
        why = self._objection(sender, body, repeated, now)
        if why is None and not repeated:
            self._open[sender] = _Permit(body.version, now + PERMIT_S)
        return [self._answer(sender, body, mandate, why, now)]

    def _objection(
        self, sender: PeerId, body: bodies.AboutMove, repeated: bool, now: float
    ) -> str | None:
        if not self._context.sees_majority:
            return "its steward does not see the majority of the swarm"
        return None if repeated else self._harm(sender, body, now)

    def _harm(self, sender: PeerId, body: bodies.AboutMove, now: float) -> str | None:
        others = self._open.keys() - {sender}
        if others:
            return "another replica is moving; one at a time"
        leaving = isinstance(body, bodies.Release)
        to = Stage(body.to) if isinstance(body, bodies.Release) else self._stage
        home = self._stage if leaving else Stage(body.home)  # type: ignore[union-attr]
        move = Move.of(sender, to, self._context.population)
        if move is None or move.home != home or to >= len(self._context.population.costs):
            return f"stage {home} is not its main stage"
        levels = self._context.board.levels(now)
        if not levels:
            return "a stage has no steward at the moment"
        postings = [notice.posting for notice in self._context.board.notices(now).values()]
        return gain.objection(postings, stage_levels(postings), levels, move)

    def _answer(
        self, sender: PeerId, body: bodies.AboutMove, mandate: Mandate, why: str | None, now: float
    ) -> SendLetter:
        permit = bodies.Permit(
            stage=self._stage,
            mandate=mandate,
            issued_ms=self._context.number(now),
            volunteer=sender,
            version=body.version,
            granted=why is None,
            reason=(why or "the lowest stage rises")[: limits.MAX_REASON_CHARS],
        )
        return SendLetter(sender, bodies.KINDS[bodies.Permit], bodies.encode_body(permit))

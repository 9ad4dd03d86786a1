"""A voter's preferences: the stages it may go to, best first, and the terms of the vote.

Pure functions of the population and the stages' basis, shared by protocol and reference.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.choice import Proposer
from protocol.matching.exchange import load
from protocol.matching.exchange.load import Basis
from protocol.matching.pool import Limits
from protocol.matching.population import Population

LADDER_PERCENT = (100, 90, 75, 60)
"""Quotas tried in turn, in per cent of the fair level."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of one attempt, the same for every stage."""

    quota_percent: int
    fair: int
    """Lambda of this epoch: the mean of the stages' levels."""
    r: int

    @property
    def limits(self) -> Limits:
        """The limits of every stage's choice."""
        return Limits(self.fair * self.quota_percent // 100, self.r)


def ranked(
    population: Population,
    peer: PeerId,
    home: Stage,
    stages: Sequence[Basis],
    r: int,
    relayed: Collection[PeerId] = (),
) -> tuple[Stage, ...]:
    """Return the stages that a serving volunteer can serve, best first.

    Utilities use levels after dual homing; its home is counted without the volunteer.

    Args:
        population: the view with its rates.
        peer: the volunteer.
        home: its home.
        stages: every stage before any move, in order.
        r: replicas that every stage should have.
        relayed: whom the volunteer reaches through a relay only.
    """
    reached = load.levels([stage.load for stage in stages])
    fair = sum(reached) // len(reached)
    own = population.rate(peer, home)
    wishes = {}
    for s, (stage, level) in enumerate(zip(stages, reached, strict=True)):
        here = s == home
        wishes[Stage(s)] = population.wish(
            peer,
            Stage(s),
            level=max(0, level - own) if here else level,
            fair=fair,
            replicas=stage.replicas - here,
            r=r,
            relayed=relayed,
        )
    able = [s for s in wishes if population.rate(peer, s)]
    return tuple(sorted(able, key=lambda s: (wishes[s], -s), reverse=True))


def offer(population: Population, peer: PeerId, stage: Stage, fair: int) -> Proposer:
    """Return a voter's contract with a stage, by the view and not by its claims.

    Args:
        population: the view with its rates.
        peer: the voter.
        stage: the stage.
        fair: lambda of the epoch.
    """
    return Proposer(peer, population.rate(peer, stage), population.score(peer, stage, fair))

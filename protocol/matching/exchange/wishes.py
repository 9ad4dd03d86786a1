"""What a voter wants: the stages it may go to, best first, and the terms of the vote.

Pure functions of the population and the stages' basis, the same for protocol and reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.choice import Proposer
from protocol.matching.exchange import load
from protocol.matching.exchange.load import Basis
from protocol.matching.pool import Limits
from protocol.matching.population import Population

LADDER_PERCENT = (100, 90, 75, 60)
"""Quotas that are tried in turn, in per cent of the fair level."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every stage in one attempt."""

    quota_percent: int
    fair: int
    """Lambda of this epoch: the mean of the stages' levels."""
    r: int

    @property
    def limits(self) -> Limits:
        """What a stage may keep."""
        return Limits(self.fair * self.quota_percent // 100, self.r)


def ranked(
    population: Population, peer: PeerId, home: Stage, stages: Sequence[Basis], r: int
) -> tuple[Stage, ...]:
    """Return the stages a serving volunteer can serve, best first.

    Utilities count the stages after dual homing, the volunteer's own without itself.
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
        )
    able = [s for s in wishes if population.rate(peer, s)]
    return tuple(sorted(able, key=lambda s: (wishes[s], -s), reverse=True))


def offer(population: Population, peer: PeerId, stage: Stage, fair: int) -> Proposer:
    """Return how a stage counts a voter: by the view, whatever it may claim."""
    return Proposer(peer, population.rate(peer, stage), population.score(peer, stage, fair))

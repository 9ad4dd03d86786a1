"""Finds blocking pairs: volunteers that prefer another stage which would accept them.

Pure. Without any the matching is stable (invariant I7). The count of a crowd covers every volunteer
with a home, even if the protocol would not let it move now, at each stage's present quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.bodies import Posting
from protocol.matching.choice import Choice, Proposer, prefix_cover
from protocol.matching.member import Member
from protocol.matching.pool import Limits
from protocol.matching.population import Population

Assignment = Mapping[PeerId, Stage | None]


@dataclass(frozen=True, slots=True)
class Instance:
    """One matching problem."""

    preferences: Mapping[PeerId, tuple[Stage, ...]]
    """Acceptable stages of every volunteer, best first."""
    offers: Mapping[tuple[PeerId, Stage], Proposer]
    """The volunteer's rate and score at a stage."""
    limits: Mapping[Stage, Limits]

    def choose(self, stage: Stage, peers: set[PeerId]) -> Choice[Proposer]:
        """Return the stage's choice among some proposers."""
        limits = self.limits[stage]
        proposers = (self.offers[peer, stage] for peer in peers)
        return prefix_cover(proposers, limits.quota, limits.floor)


@dataclass(frozen=True, slots=True)
class BlockingPair:
    """A volunteer and a stage that would keep it and that it prefers to its present one."""

    peer: PeerId
    stage: Stage
    instead_of: Stage | None


def blocking_pairs(
    instance: Instance, assignment: Assignment, locked: frozenset[PeerId] = frozenset()
) -> list[BlockingPair]:
    """Return every blocking pair.

    Args:
        instance: the preferences and limits.
        assignment: each volunteer's stage.
        locked: incumbents; they may not move and block nothing.
    """
    staff = {
        stage: {peer for peer, at in assignment.items() if at == stage} for stage in instance.limits
    }
    return [
        BlockingPair(peer, stage, assignment.get(peer))
        for peer in instance.preferences
        if peer not in locked
        for stage in _preferred(instance, peer, assignment.get(peer))
        if _would_keep(instance, stage, staff[stage], peer)
    ]


def _preferred(instance: Instance, peer: PeerId, now_at: Stage | None) -> tuple[Stage, ...]:
    wishes = instance.preferences[peer]
    return wishes[: wishes.index(now_at)] if now_at in wishes else wishes


def _would_keep(instance: Instance, stage: Stage, staff: set[PeerId], peer: PeerId) -> bool:
    kept = instance.choose(stage, staff | {peer}).kept
    return any(proposer.peer == peer for proposer in kept)


def count_blocking_pairs(population: Population, postings: Mapping[Stage, Posting]) -> int | None:
    """Return the number of blocking pairs, None while a stage has no posting."""
    if len(postings) < len(population.costs):
        return None
    levels = population.supply.levels
    at_home = {
        peer: member for peer, member in population.members.items() if member.home_stage is not None
    }
    instance = Instance(
        preferences={
            peer: _ranked(population, member, postings, levels) for peer, member in at_home.items()
        },
        offers={
            (peer, stage): Proposer(
                peer,
                population.rate(peer, stage),
                population.score(peer, stage, population.fair_level),
            )
            for peer in at_home
            for stage in postings
        },
        limits={stage: Limits(posting.quota, posting.r) for stage, posting in postings.items()},
    )
    homes = {peer: member.home_stage for peer, member in at_home.items()}
    return len(blocking_pairs(instance, homes))


def _ranked(
    population: Population,
    member: Member,
    postings: Mapping[Stage, Posting],
    levels: Sequence[int],
) -> tuple[Stage, ...]:
    """Return the stages a member can serve, best first, all else as it is."""
    wishes = {}
    for stage, posting in postings.items():
        rate = population.rate(member.peer, stage)
        here = stage == member.home_stage
        if rate:
            wishes[stage] = population.wish(
                member.peer,
                stage,
                level=max(0, levels[stage] - rate) if here else levels[stage],
                fair=posting.fair,
                replicas=posting.copies - here,
                r=posting.r,
            )
    return tuple(sorted(wishes, key=lambda stage: (wishes[stage], -stage), reverse=True))

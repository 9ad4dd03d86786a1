"""Counts the blocking pairs of a crowd with the protocol's own audit, on all views.

Pure. The audit covers every volunteer with a home, even if the protocol would not let it move now:
it counts a stage that the volunteer prefers and that would keep it, at the stage's present quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.lab.simulate.market.audit import Instance, blocking_pairs
from protocol.ids import Stage
from protocol.matching.board import stage_levels
from protocol.matching.bodies import Posting
from protocol.matching.choice import Proposer
from protocol.matching.pool import Limits
from protocol.matching.population import Member, Population
from protocol.matching.sharing import effective_levels


def count_blocking_pairs(population: Population, postings: Mapping[Stage, Posting]) -> int | None:
    """Return the number of blocking pairs, None while a stage has no posting."""
    if len(postings) < len(population.costs):
        return None
    levels = effective_levels(stage_levels([postings[Stage(s)] for s in population.stages]))
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

"""Who may decide for a stage: derived by hash from the membership view, never elected.

Pure functions of a view and the beacon, a number that changes every ten minutes for everybody.
"""

from __future__ import annotations

from functools import lru_cache

from protocol.ids import PeerId, Stage, rank
from protocol.matching.population import Population
from protocol.matching.timing import BEACON_S, STEWARD_AGE_S

STEWARDS = 3
"""Candidates per stage; a posting by anybody else is not believed."""


def beacon_at(wall_s: float) -> int:
    """Return the beacon of a moment of Unix time."""
    return int(wall_s // BEACON_S)


@lru_cache(maxsize=2**18)
def role_rank(beacon: int, stage: Stage, peer: PeerId) -> bytes:
    """Return what orders peers for the stewardship of a stage; the lowest is first."""
    return rank("steward", beacon, stage, peer)


def succession(
    population: Population, stage: Stage, beacon: int, wall_s: float
) -> tuple[PeerId, ...]:
    """Return up to three candidates in the order in which they take a vacant stage over.

    Peers that are old enough come before younger ones (that clause relaxes itself while the swarm
    is young) and peers that do not serve the stage before those that do.
    """

    def order(peer: PeerId) -> tuple[bool, bool, bytes]:
        member = population.members[peer]
        young = wall_s - member.joined_at < STEWARD_AGE_S
        return (young, stage in member.held, role_rank(beacon, stage, peer))

    return tuple(sorted(population.members, key=order)[:STEWARDS])


def by_rank(population: Population, stage: Stage, beacon: int) -> tuple[PeerId, ...]:
    """Return the three lowest ranks alone: what stays true while peers age and change stages."""
    order = sorted(population.members, key=lambda peer: role_rank(beacon, stage, peer))
    return tuple(order[:STEWARDS])

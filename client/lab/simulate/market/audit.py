"""The audit: finds volunteers that prefer another stage which would accept them.

Pure. An empty result means that the matching is stable (invariant I7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import PeerId, Stage
from protocol.matching.choice import Choice, Proposer, prefix_cover
from protocol.matching.pool import Limits

Assignment = Mapping[PeerId, Stage | None]


@dataclass(frozen=True, slots=True)
class Instance:
    """One matching problem."""

    preferences: Mapping[PeerId, tuple[Stage, ...]]
    """Acceptable stages of every volunteer, best first."""
    offers: Mapping[tuple[PeerId, Stage], Proposer]
    """The volunteer's rate and score at a stage."""
    limits: Mapping[Stage, Limits]

    def choose(self, stage: Stage, peers: set[PeerId]) -> Choice:
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

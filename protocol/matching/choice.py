"""Prefix cover: which of its proposers a stage keeps.

A stage sorts its proposers by score and keeps the shortest prefix whose summed rate reaches its
quota (and that has as many members as redundancy asks for). Whether a proposer is kept depends
only on those ahead of it, hence substitutes and irrelevance of rejected contracts, hence deferred
acceptance is stable and independent of the order of arrival (Dean, Goemans & Immorlica 2006).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Proposer:
    """One contract on offer. ``locked``: an incumbent, which is kept whatever its score."""

    peer: PeerId
    rate: int
    score: int
    locked: bool = False

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sort key, best first."""
        return (not self.locked, -self.score, self.peer)


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome: ``kept`` best first, ``let_go`` best first."""

    kept: tuple[Proposer, ...]
    let_go: tuple[Proposer, ...]

    @property
    def level(self) -> int:
        """Summed rate of the kept."""
        return sum(proposer.rate for proposer in self.kept)


def prefix_cover(proposers: Iterable[Proposer], quota: int, floor: int = 1) -> Choice:
    """Keep locked proposers and the shortest prefix that reaches ``quota`` and ``floor`` members.

    Overshoot: without its last unlocked member the kept set is below quota or below floor.
    """
    ranked = sorted(proposers, key=lambda proposer: proposer.order)
    level = kept = 0
    for proposer in ranked:
        if not proposer.locked and level >= quota and kept >= floor:
            break
        level += proposer.rate
        kept += 1
    return Choice(tuple(ranked[:kept]), tuple(ranked[kept:]))

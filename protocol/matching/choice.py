"""Prefix cover: a stage's choice among its proposers.

A stage sorts its proposers by score and keeps the shortest prefix whose summed rate reaches its
quota and that has as many members as redundancy requires. A proposer's acceptance depends only on
those ahead of it. So the choice has substitutes and irrelevance of rejected contracts, and deferred
acceptance is stable and independent of the order of arrival (Dean, Goemans & Immorlica 2006).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from protocol.ids import PeerId


class Proposer(msgspec.Struct, frozen=True):
    """One contract on offer. ``locked``: an incumbent, which is kept whatever its score."""

    peer: PeerId
    rate: int
    score: int
    locked: bool = False

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sort key, best first."""
        return (not self.locked, -self.score, self.peer)


Contract = TypeVar("Contract", bound=Proposer)


@dataclass(frozen=True, slots=True)
class Choice(Generic[Contract]):
    """The outcome: ``kept`` best first, ``let_go`` best first."""

    kept: tuple[Contract, ...]
    let_go: tuple[Contract, ...]


def prefix_cover(proposers: Iterable[Contract], quota: int, floor: int = 1) -> Choice[Contract]:
    """Keep locked proposers and the shortest prefix that reaches quota and floor.

    The kept set overshoots by at most one member: without its last unlocked member it is below
    ``quota`` or below ``floor``.

    Args:
        proposers: all contracts on offer.
        quota: summed rate to reach, micro-microbatches per second.
        floor: fewest members.
    """
    ranked = sorted(proposers, key=lambda proposer: proposer.order)
    level = kept = 0
    for proposer in ranked:
        if not proposer.locked and level >= quota and kept >= floor:
            break
        level += proposer.rate
        kept += 1
    return Choice(tuple(ranked[:kept]), tuple(ranked[kept:]))

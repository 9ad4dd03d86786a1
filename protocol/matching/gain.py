"""The gain of a single move: the effective levels with one replica elsewhere.

Pure functions of the postings. A move pays if the lower of the two stages it touches rises clearly,
the lowest level of all does not fall, and the stages left keep r replicas unless the target has
fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.ids import PeerId, Stage
from protocol.matching.bodies import Posting
from protocol.matching.population import Population
from protocol.matching.sharing import StageLevel, effective_levels

CLEARLY_PERCENT = 105
"""The lower stage must rise by a twentieth: a move costs the download of a stage."""


@dataclass(frozen=True, slots=True)
class Move:
    """One replica's move from its home to another stage, with its rates at both."""

    home: Stage
    to: Stage
    rate_home: int
    rate_there: int
    second: Stage | None = None
    rate_second: int = 0

    @property
    def leaves(self) -> tuple[Stage, ...]:
        """The stages that lose a replica; a second stage is kept only next to the new home."""
        if self.second is None or abs(self.second - self.to) == 1:
            return (self.home,)
        return (self.home, self.second)

    @classmethod
    def of(cls, peer: PeerId, to: Stage, population: Population) -> Move | None:
        """Return the move of ``peer`` to stage ``to``; None if it has no other home in
        ``population``."""
        member = population.members.get(peer)
        home = member.home_stage if member else None
        if member is None or home is None or home == to:
            return None
        second = member.second
        return cls(
            home,
            to,
            population.rate(peer, home),
            population.rate(peer, to),
            second,
            0 if second is None else population.rate(peer, second),
        )


def after_move(stages: Sequence[StageLevel], move: Move) -> list[StageLevel]:
    """Return the rates that serve every stage after the move; the second seat is given up."""
    changed = list(stages)
    if move.second is None:
        here = changed[move.home]
        changed[move.home] = replace(here, alone=max(0, here.alone - move.rate_home))
    else:
        lower = min(move.home, move.second)
        first, next_ = move.rate_home, move.rate_second
        if lower == move.second:
            first, next_ = next_, first
        pool = changed[lower]
        changed[lower] = replace(
            pool,
            pool_here=max(0, pool.pool_here - first),
            pool_next=max(0, pool.pool_next - next_),
        )
    there = changed[move.to]
    changed[move.to] = replace(there, alone=there.alone + move.rate_there)
    return changed


def neediest(postings: Sequence[Posting], levels: Sequence[int]) -> Stage:
    """Return the stage with the fewest replicas (up to r), then with the lowest level."""
    return min(
        map(Stage, range(len(postings))),
        key=lambda s: (min(postings[s].copies, postings[s].r), levels[s], s),
    )


def objection(
    postings: Sequence[Posting], stages: Sequence[StageLevel], levels: Sequence[int], move: Move
) -> str | None:
    """Return why a move does not pay, or None if it does.

    Args:
        postings: of all stages, in order.
        stages: rates that serve each stage now.
        levels: effective level of each stage now.
        move: the move to judge.
    """
    home, there = postings[move.home], postings[move.to]
    if not move.rate_there:
        return "this machine is too small for it"
    for stage in move.leaves:
        left = postings[stage]
        if left.copies - 1 < left.r and there.copies + 1 > left.copies - 1:
            return f"stage {stage} has {left.copies} replicas and needs {left.r}"
    if there.copies == 0 or (there.copies < there.r and home.copies > home.r):
        return None  # coverage and redundancy come before throughput
    changed = effective_levels(after_move(stages, move))
    low = min(levels[move.home], levels[move.to])
    new_low = min(changed[move.home], changed[move.to])
    if new_low * 100 <= low * CLEARLY_PERCENT or min(changed) < min(levels):
        return "the lower of the two stages would not rise"
    return None

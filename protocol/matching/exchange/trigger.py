"""When a full epoch is due. Pure functions of what the stages post."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.matching.exchange.timing import AFTER_ABORT_S, EMERGENCY_GAP_S, EPOCH_GAP_S
from protocol.matching.preferences import words

UNEVEN_PERCENT = 90
"""The lowest stage below this share of the mean is worth an epoch."""

LITTLE_PERCENT = 2
"""Levels that moved less than this are as they were."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How the stages stand: levels after dual homing, and copies."""

    levels: tuple[int, ...]
    copies: tuple[int, ...]

    def differs(self, other: Condition) -> bool:
        """Tell whether more than a little has changed."""
        moved = any(
            abs(mine - its) * 100 > LITTLE_PERCENT * its
            for mine, its in zip(self.levels, other.levels, strict=True)
        )
        return moved or self.copies != other.copies


@dataclass(frozen=True, slots=True)
class Grievance:
    """Why an epoch is due."""

    words: str
    urgent: bool


def grievance(condition: Condition, r: int) -> Grievance | None:
    """Return what is wrong with the matching as it is, or None."""
    copies = condition.copies
    short = min(range(len(copies)), key=lambda s: (copies[s], s))
    spare = max(copies) > min(r, copies[short] + 1)
    if copies[short] < r and spare:
        return Grievance(f"stage {short} has {copies[short]} of {r} replicas", urgent=True)
    return _uneven(condition.levels)


def _uneven(levels: Sequence[int]) -> Grievance | None:
    lowest, mean = min(levels), sum(levels) // len(levels)
    if lowest * 100 >= mean * UNEVEN_PERCENT:
        return None
    stage = levels.index(lowest)
    return Grievance(f"stage {stage} has {words(lowest)}, the mean is {words(mean)}", urgent=False)


@dataclass(frozen=True, slots=True)
class Last:
    """The last epoch, as far as the next one's moment depends on it."""

    ended_at: float
    condition: Condition
    aborted: bool


def due_at(now: Condition, grievance: Grievance, since: float, last: Last | None) -> float:
    """Return when an epoch may be called, monotonic seconds. ``since``: when it became due."""
    if last is None:
        return since + EMERGENCY_GAP_S
    if not now.differs(last.condition):
        return last.ended_at + AFTER_ABORT_S
    gap_s = EMERGENCY_GAP_S if grievance.urgent else EPOCH_GAP_S
    return max(last.ended_at + gap_s, since + EMERGENCY_GAP_S)

"""The loss of a step from its members' sums, none of which counts if it cannot be right.

A member says the sum of its own microbatches' losses, and nobody can check it without computing
them. It is for people to look at, and no machine goes by it; but what one member says, 0 or 5e26,
shall not be what everybody is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

USUAL_RATIO: Final = 4.0
"""Means of different microbatches of one step differ by less."""


def vouched_sum(shares: Sequence[tuple[float, int]], own: int | None = None) -> float:
    """Return the sum of the members' losses; a member whose mean is far from what most say counts
    with that.

    Args:
        shares: of every member, its sum and how many microbatches it is of.
        own: which of them is ours: of two that do not agree we go by our own.
    """
    means = sorted(total / count for total, count in shares if count)
    if not means:
        return 0.0
    middle = means[(len(means) - 1) // 2]
    if len(means) <= 2 and own is not None and shares[own][1]:
        middle = shares[own][0] / shares[own][1]
    usual = [
        total if _is_usual(total, count, middle) else middle * count for total, count in shares
    ]
    return sum(usual)


def _is_usual(total: float, count: int, middle: float) -> bool:
    if not count:
        return total == 0.0
    low, high = sorted((middle / USUAL_RATIO, middle * USUAL_RATIO))
    return low <= total / count <= high

"""Shares a machine's memory among its volunteers: who comes first has it. Pure.

Each volunteer tells the others how much its stages need, and they plan with what is left. Claims of
other users cannot be checked. So each user may take an equal part whatever they claim, as far as
that memory is really free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def memory_left(
    total_bytes: int, free_bytes: int, user: int, others: Iterable[tuple[int, int]]
) -> int:
    """Return the memory that a volunteer's stages may take; at least 0.

    Args:
        total_bytes: for the stages of all volunteers.
        free_bytes: that nobody uses now, and what this volunteer uses.
        user: id of the user that runs it.
        others: user and bytes of each of the others.
    """
    held = Counter[int]()
    for whose, size_bytes in others:
        held[whose] += size_bytes
    own_bytes = held.pop(user, 0)
    part_bytes = min(free_bytes, total_bytes // (1 + len(held)))
    return max(0, max(part_bytes, total_bytes - held.total()) - own_bytes)

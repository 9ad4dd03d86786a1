"""Ledgers of a step as they are sent."""

from collections.abc import Iterable


def to_bitmap(ids: Iterable[int], step: int, per_step: int) -> bytes:
    """Return the bitmap of these microbatches, by absolute ids, of a step."""
    bits = sum(1 << microbatch - step * per_step for microbatch in set(ids))
    return bits.to_bytes((per_step + 7) // 8, "little")

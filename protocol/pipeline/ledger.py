"""The ledger: which microbatches of one step a replica has counted (invariant I1).

Ids are absolute (step t of M microbatches owns t*M .. t*M+M-1); on the wire a ledger is a bitmap
relative to the step, little-endian within bytes, so its size is M/8 bytes whatever the step.
"""

from collections.abc import Iterable

from protocol.errors import RemoteProtocolError


def to_bitmap(ids: Iterable[int], step: int, per_step: int) -> bytes:
    """Return the bitmap of these microbatches of a step of ``per_step``, by absolute ids."""
    bits = sum(1 << microbatch - step * per_step for microbatch in set(ids))
    return bits.to_bytes((per_step + 7) // 8, "little")


def bits_of(bitmap: bytes, step: int, per_step: int) -> int:
    """Return a bitmap as one number; bit i is the i-th microbatch of the step.

    Args:
        bitmap: of a ledger.
        step: its step, for the error.
        per_step: microbatches per step.

    Raises:
        RemoteProtocolError: bits beyond the step's microbatches.
    """
    bits = int.from_bytes(bitmap, "little")
    if bits >> per_step:
        raise RemoteProtocolError("ledger-out-of-range", f"step {step}")
    return bits


def count_of(bitmap: bytes) -> int:
    """Return how many ids are in a bitmap."""
    return int.from_bytes(bitmap, "little").bit_count()


def from_bitmap(bitmap: bytes, step: int, per_step: int) -> frozenset[int]:
    """Decode a bitmap of one step into absolute ids.

    Args:
        bitmap: of a ledger.
        step: its step.
        per_step: microbatches per step.

    Raises:
        RemoteProtocolError: bits beyond the step's microbatches.
    """
    bits_of(bitmap, step, per_step)
    first = step * per_step
    return frozenset(
        first + 8 * place + bit
        for place, byte in enumerate(bitmap)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    )

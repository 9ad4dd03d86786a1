"""Shamir's secret sharing (1979) of a seed, so that any ``threshold`` of the holders recover it.

Pure arithmetic over the integers modulo 2^130 - 5. The polynomial follows from the seed alone:
whoever recovers a seed can deal it again, and sees whether all its shares were true.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

SEED_BYTES = 16
SHARE_BYTES = 17
HASH_BYTES = 16
_PRIME = 2**130 - 5
_PERSON = b"volunteer share"


def threshold(members: int) -> int:
    """Return how many of ``members`` recover a seed: more than two thirds."""
    return 2 * members // 3 + 1


def deal(seed: bytes, members: int) -> list[bytes]:
    """Return the shares of a seed for members 0, 1, ...; each is ``SHARE_BYTES`` long."""
    coefficients = [int.from_bytes(seed, "little")]
    for power in range(1, threshold(members)):
        drawn = blake2b(power.to_bytes(2, "little"), key=seed, person=_PERSON, digest_size=32)
        coefficients.append(int.from_bytes(drawn.digest(), "little") % _PRIME)
    return [
        _value(coefficients, place + 1).to_bytes(SHARE_BYTES, "little") for place in range(members)
    ]


def _value(coefficients: list[int], x: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % _PRIME
    return total


def recover(shares: Mapping[int, bytes], members: int) -> bytes | None:
    """Return the seed that shares were dealt from.

    Args:
        shares: by the place of their holder; ``threshold(members)`` of them are used.
        members: the number of holders.

    Returns:
        None if these are too few, or not the shares of a seed.
    """
    needed = threshold(members)
    used = sorted(shares)[:needed]
    if len(used) < needed:
        return None
    total = 0
    for place in used:
        above, below = 1, 1
        for other in used:
            if other != place:
                above = above * (other + 1) % _PRIME
                below = below * (other - place) % _PRIME
        weight = above * pow(below, -1, _PRIME)
        total += weight * int.from_bytes(shares[place], "little")
    secret = total % _PRIME
    return secret.to_bytes(SEED_BYTES, "little") if secret < 1 << (8 * SEED_BYTES) else None


def share_hash(share: bytes, place: int) -> bytes:
    """Return what a dealer publishes of the share of the member at ``place``."""
    of = place.to_bytes(2, "little") + share
    return blake2b(of, person=_PERSON, digest_size=HASH_BYTES).digest()

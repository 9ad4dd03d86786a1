"""Masks of a secret sum: streams of ChaCha20 that are added to integers modulo 2^16.

Each mask is the stream of one key, which follows from its seed and the segment, so no part of a
stream is used twice. Holds no state.
"""

from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

_CHUNK = 1 << 19  # bytes: the stream and the numbers that it is added to stay in the cache
_NONCE = bytes(16)  # every key is used for one stream
_ZEROS = bytes(_CHUNK)
_PERSON = b"volunteer mask"

Integers = NDArray[np.uint16]


def add_mask(numbers: Integers, seed: bytes, segment: int, *, subtract: bool = False) -> None:
    """Add the mask of a seed to integers in place, or subtract it.

    Args:
        numbers: modulo 2^16, little-endian as they are sent.
        seed: at most 64 bytes; both members of a pair have it, or a member alone.
        segment: number of the segment.
        subtract: take the mask out.
    """
    key = blake2b(segment.to_bytes(4, "little"), key=seed, person=_PERSON, digest_size=32).digest()
    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    mask = bytearray(_CHUNK)
    combine = np.subtract if subtract else np.add
    for start in range(0, len(numbers), _CHUNK // 2):
        part = numbers[start : start + _CHUNK // 2]
        size = part.nbytes
        stream.update_into(memoryview(_ZEROS)[:size], memoryview(mask)[:size])
        combine(part, np.frombuffer(mask, "<u2", len(part)), out=part)

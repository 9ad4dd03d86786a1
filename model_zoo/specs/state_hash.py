"""The hash of a version: its definition, and how it is computed of much data by several threads.

A version's data, which are its tensors' bytes one behind the other, are cut into leaves of 4 MiB.
The hash is the BLAKE2b-256 (personalised "stage version") of the version's number (8 bytes,
little-endian) and the BLAKE2b-256 of every leaf. So leaves are hashed by as many threads as there
are, and beside other work.

No state but a hasher's; imports no torch: the node verifies files with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, Self, TypeVar

LEAF_BYTES: Final = 4 << 20
_PERSON: Final = b"stage version"
_NUMBER_BYTES: Final = 8


class Bytes(Protocol):
    """What can be cut without a copy: a memoryview, or a tensor of bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...


Data = TypeVar("Data", bound=Bytes)


def root(version: int, digests: Iterable[bytes]) -> str:
    """Hex hash of a version, from the digests of its leaves."""
    state = hashlib.blake2b(_number(version), digest_size=32, person=_PERSON)
    for digest in digests:
        state.update(digest)
    return state.hexdigest()


def leaf_digest(leaf: Iterable[memoryview]) -> bytes:
    """BLAKE2b-256 of a leaf."""
    state = hashlib.blake2b(digest_size=32)
    for part in leaf:
        state.update(part)
    return state.digest()


def leaves(buffers: Sequence[Data]) -> Iterator[tuple[Data, ...]]:
    """Cut data into leaves, without a copy: each in parts where buffers meet in it. The last may be
    shorter."""
    parts, filled = list[Data](), 0
    for buffer in buffers:
        while len(buffer):
            part = buffer[: LEAF_BYTES - filled]
            parts.append(part)
            filled, buffer = filled + len(part), buffer[len(part) :]
            if filled == LEAF_BYTES:
                yield tuple(parts)
                parts, filled = [], 0
    if parts:
        yield tuple(parts)


class PieceHasher:
    """Computes the BLAKE2b-256 of every piece of data that come one after the other; the last piece
    may be shorter.

    ``size``: of a piece; `LEAF_BYTES`: its digests are those of leaves.
    """

    def __init__(self, size: int = LEAF_BYTES) -> None:
        self._size, self._digests = size, list[bytes]()
        self._piece, self._filled = hashlib.blake2b(digest_size=32), 0

    def update(self, data: memoryview) -> None:
        """Take the next data."""
        while data:
            part = data[: self._size - self._filled]
            self._piece.update(part)
            self._filled, data = self._filled + len(part), data[len(part) :]
            if self._filled == self._size:
                self._digests.append(self._piece.digest())
                self._piece, self._filled = hashlib.blake2b(digest_size=32), 0

    @property
    def digests(self) -> list[bytes]:
        """Of what has come."""
        rest = [self._piece.digest()] if self._filled else []
        return [*self._digests, *rest]


def _number(version: int) -> bytes:
    return version.to_bytes(_NUMBER_BYTES, "little")

"""The hash of a version: its definition, and how it is computed of much data by several threads.

A version's data, which are its tensors' bytes one behind the other, are cut into leaves of 2 MiB.
The hash is the BLAKE2b-256 (personalised "stage version") of the version's number (8 bytes,
little-endian) and the BLAKE2b-256 of every leaf. So leaves are hashed by as many threads as there
are, and beside other work; and whoever knows the hash verifies each leaf as it arrives, once it has
the list of their digests. Other files that are copied whole are hashed as version 0.

No state but a hasher's; imports no torch: the node verifies files with it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, Self, TypeVar

LEAF_BYTES: Final = 2 << 20
DIGEST_BYTES: Final = 32
_PERSON: Final = b"stage version"
_NUMBER_BYTES: Final = 8


class Bytes(Protocol):
    """What can be cut without a copy: a memoryview, or a tensor of bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...


Data = TypeVar("Data", bound=Bytes)


def root(version: int, digests: Iterable[bytes]) -> str:
    """Hex hash of a version, from the digests of its leaves."""
    state = hashlib.blake2b(_number(version), digest_size=DIGEST_BYTES, person=_PERSON)
    for digest in digests:
        state.update(digest)
    return state.hexdigest()


def leaf_digest(leaf: Iterable[memoryview]) -> bytes:
    """BLAKE2b-256 of a leaf."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
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


def file_hash(data: bytes) -> str:
    """Hex hash of a file that is copied whole."""
    return root(0, map(leaf_digest, leaves([memoryview(data)])))


class LeafHasher:
    """Computes the digests of the leaves of data that come one part after the other.

    Args:
        leaf_bytes: of all leaves but the last.
        person: label of the leaves.

    Attributes:
        whole: digests of the leaves that are complete, and were not taken out.
    """

    def __init__(self, leaf_bytes: int = LEAF_BYTES, person: bytes = b"") -> None:
        self._leaf_bytes, self._person = leaf_bytes, person
        self.whole = list[bytes]()
        self._begin()

    def _begin(self) -> None:
        self._leaf = hashlib.blake2b(digest_size=DIGEST_BYTES, person=self._person)
        self._filled = 0

    def update(self, data: memoryview) -> None:
        """Take the next data."""
        while data:
            part = data[: self._leaf_bytes - self._filled]
            self._leaf.update(part)
            self._filled, data = self._filled + len(part), data[len(part) :]
            if self._filled == self._leaf_bytes:
                self.whole.append(self._leaf.digest())
                self._begin()

    @property
    def digests(self) -> list[bytes]:
        """Of what has come, an unfinished leaf as well."""
        return [*self.whole, *([self._leaf.digest()] if self._filled else [])]


def _number(version: int) -> bytes:
    return version.to_bytes(_NUMBER_BYTES, "little")

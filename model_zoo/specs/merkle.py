"""The digest of a token file: the root of a binary tree over leaves of 256 KiB.

A leaf can be checked without the rest. The tree has the shape of RFC 6962: its left half is the
largest power of two of leaves. Leaves and inner nodes are hashed under different labels, so none
passes for the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

LEAF_BYTES = 256 * 1024
DIGEST_BYTES = 32
LEAF = b"volunteer leaf"
"""The label of leaves."""
PAGE = 1024
"""Leaves, a power of two: the tree over the roots of such pages is the upper part of the whole."""


def leaf_digest(data: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of a leaf: `LEAF_BYTES` of the file, fewer at its end."""
    return blake2b(data, digest_size=DIGEST_BYTES, person=LEAF).digest()


class Tree:
    """A whole tree in memory, to say of each leaf how it leads to the root.

    Args:
        leaves: the digests of all leaves, in their order.

    Raises:
        ValueError: there is no leaf.
    """

    def __init__(self, leaves: Iterable[bytes]) -> None:
        level = list(leaves)
        if not level:
            raise ValueError("a tree needs a leaf")
        self._levels = [level]
        while len(level) > 1:
            joined = [_join(*level[at : at + 2]) for at in range(0, len(level) - 1, 2)]
            level = joined + level[len(level) - len(level) % 2 :]  # the odd one goes up as it is
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """The root."""
        return self._levels[-1][0]

    def path(self, index: int) -> list[bytes]:
        """Return what is joined with a leaf on its way to the root, from the leaf upwards."""
        found = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                found.append(level[index ^ 1])
            index >>= 1
        return found


def root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over the digests of all leaves, in their order, a page in memory at a time.

    Raises:
        ValueError: there is no leaf.
    """
    rest = iter(leaves)
    pages = iter(lambda: list(islice(rest, PAGE)), [])
    return Tree(Tree(page).root for page in pages).root


def path_length(index: int, count: int) -> int:
    """Return how many digests the path of a leaf has, in a tree of ``count`` leaves."""
    return sum(1 for _ in _siblings(index, count))


def climb(digest: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes:
    """Return the root to which a leaf's digest leads along its path.

    Raises:
        ValueError: the path is longer or shorter than that of such a leaf.
    """
    for other, at in zip(path, _siblings(index, count), strict=True):
        digest = _join(other, digest) if at & 1 else _join(digest, other)
    return digest


def _siblings(index: int, count: int) -> Iterator[int]:
    """The place of the node in its level, from the leaf upwards, where it has a sibling."""
    while count > 1:
        if index ^ 1 < count:
            yield index
        index, count = index >> 1, (count + 1) >> 1


def leaf_count(size_bytes: int) -> int:
    """Return how many leaves a file of so many bytes has."""
    return -(-size_bytes // LEAF_BYTES)


def leaf_size(index: int, size_bytes: int) -> int:
    """Return the bytes of a leaf of a file of so many bytes: the last one may be shorter."""
    return max(0, min(LEAF_BYTES, size_bytes - index * LEAF_BYTES))


def proven_size(index: int, size_bytes: int) -> int:
    """Return the bytes of a leaf with its path behind it, as it is sent and kept."""
    steps = path_length(index, leaf_count(size_bytes))
    return leaf_size(index, size_bytes) + steps * DIGEST_BYTES


def is_proven(proven: bytes, index: int, size_bytes: int, root_hex: str) -> bool:
    """Whether a leaf with its path behind it belongs at a place of a file.

    Args:
        proven: from a stranger.
        index: number of the leaf.
        size_bytes, root_hex: of the file.
    """
    count, size = leaf_count(size_bytes), leaf_size(index, size_bytes)
    if not 0 <= index < count or len(proven) != proven_size(index, size_bytes):
        return False
    path = [proven[at : at + DIGEST_BYTES] for at in range(size, len(proven), DIGEST_BYTES)]
    return climb(leaf_digest(memoryview(proven)[:size]), index, count, path).hex() == root_hex


def _join(left: bytes, right: bytes) -> bytes:
    return blake2b(left + right, digest_size=DIGEST_BYTES, person=b"volunteer node").digest()

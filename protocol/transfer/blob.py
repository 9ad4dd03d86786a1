"""A blob that a peer has: its offer, and the list of the digests of its chunks.

The list may be longer than a message's header, so it is fetched like a chunk. An offer names the
list by its own digest, the blob's *root*: whoever has two equal roots before it has one blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from protocol.limits import CHUNK_BYTES
from protocol.wire.messages import BlobKind, BlobOffer

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Blob:
    """An offer and what it stands for.

    Args:
        offer: what others are told.
        listed: the digests of the chunks, one behind the other; the offer's root is their digest.
    """

    offer: BlobOffer
    listed: bytes

    @staticmethod
    def of(
        kind: BlobKind, stage: int, version: int, size_bytes: int, digests: Sequence[bytes]
    ) -> Blob:
        """Return the blob whose chunks have these digests.

        Args:
            kind: a stage's state, a tokenizer, or what a stage begins with.
            stage: its stage.
            version: its version.
            size_bytes: of the whole.
            digests: BLAKE2b-256 of each chunk, in their order.
        """
        listed = b"".join(digests)
        return Blob(BlobOffer(kind, stage, version, size_bytes, root_of(listed)), listed)


def refusal(kind: BlobKind, stage: int, version: int) -> BlobOffer:
    """Return what is told of a blob that is not here, or not given now: an offer of no bytes."""
    return Blob.of(kind, stage, version, 0, ()).offer


def root_of(listed: bytes) -> bytes:
    """Return the root of a list of digests: its BLAKE2b-256."""
    return blake2b(listed, digest_size=DIGEST_BYTES).digest()


def chunk_count(size_bytes: int) -> int:
    """Return the number of chunks of so many bytes."""
    return -(-size_bytes // CHUNK_BYTES)


def split(listed: bytes) -> list[bytes]:
    """Return the digests of a list."""
    return [listed[at : at + DIGEST_BYTES] for at in range(0, len(listed), DIGEST_BYTES)]

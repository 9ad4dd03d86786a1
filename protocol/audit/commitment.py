"""The commitment of a member, made before any peer can know whether it is audited.

With its contribution a member sends every other member of the plan the signed digest of a list: of
each microbatch that it counts the digests of what it got and gave. The list itself, and what it
names, are shown on request (``audit.py``).

The digests of the contribution's segments are signed, too. An honest member signs one commitment
for an attempt, so two that differ convict their author (``evidence/proof.py``).
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits
from protocol.errors import RemoteProtocolError
from protocol.pipeline.effects import PayloadName
from protocol.wire.canonical import Canonical
from protocol.wire.fields import Hash32, MicrobatchId

MAX_TENSORS = 5
_DIGEST_BYTES: Final = 2 + 32
"""As it is encoded."""
_ROW_BYTES: Final = 1 + 9 + 1 + MAX_TENSORS * _DIGEST_BYTES
"""Its length, the microbatch's number, the digests."""
_LIST_BYTES: Final = 16


class Microbatch(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Digests of one microbatch's payloads, in the order of ``tensors_of``."""

    microbatch: MicrobatchId
    digests: Annotated[tuple[Hash32, ...], Meta(max_length=MAX_TENSORS)]


class Contents(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The list: microbatches in ascending order."""

    microbatches: Annotated[
        tuple[Microbatch, ...], Meta(max_length=limits.MAX_MICROBATCHES_PER_STEP)
    ]


CONTENTS: Final = Canonical(Contents, "audit-list")


def root_of(encoded: bytes) -> bytes:
    """Return the digest of an encoded list."""
    return blake2b(encoded, digest_size=32).digest()


def listed(encoded: bytes, root: bytes) -> Contents | None:
    """Return the list that has this digest; None: it is another one, or none."""
    if root_of(encoded) != root:
        return None
    try:
        return CONTENTS.parse(encoded)
    except RemoteProtocolError:
        return None


def tensors_of(*, first: bool, last: bool) -> tuple[PayloadName, ...]:
    """Return the payloads of a microbatch by which it can be computed again and compared, and what
    it gave to the stages beside it.

    The stage's inputs come before its outputs. Those of the first stage are its samples, which
    follow from the microbatch's number; it gives the tokens of them to the next one.
    """
    if first and last:
        return ()
    got: tuple[PayloadName, ...] = ("tokens",) if first else ("input", "tokens")
    gave: tuple[PayloadName, ...] = () if first else ("grad_out",)
    return (*got, *gave) if last else ("grad_in", *got, "output", *gave)


def contents(digests: Mapping[int, tuple[bytes, ...]]) -> bytes:
    """Return the encoded list of what a member has counted: ``digests`` by microbatch, in the order
    of ``tensors_of``."""
    return CONTENTS.encode(Contents(tuple(Microbatch(m, digests[m]) for m in sorted(digests))))


def largest_list(microbatches: int) -> int:
    """Return the most bytes that a list of so many microbatches has."""
    return _LIST_BYTES + microbatches * _ROW_BYTES

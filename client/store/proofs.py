"""The file of a swarm's proofs: the expelled members, with the evidence.

One small file per swarm, the oldest proof first. The proofs are stored unverified; the reader
checks the signatures (``protocol.evidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.evidence.expelled import MAX_PROOFS
from protocol.limits import MAX_ENVELOPE_BODY_BYTES
from protocol.wire.parts import Proof

MAX_FILE_BYTES: Final = MAX_PROOFS * 2 * (MAX_ENVELOPE_BODY_BYTES + 256)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_PROOFS)]


def load_proofs(path: Path) -> tuple[Proof, ...]:
    """Return the proofs of a file, unverified; none if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    file = load_packed(path, _File, MAX_FILE_BYTES)
    return file.proofs if file else ()


def save_proofs(path: Path, proofs: Sequence[Proof]) -> None:
    """Replace the file with these proofs.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    save_packed(path, _File(1, tuple(proofs)))

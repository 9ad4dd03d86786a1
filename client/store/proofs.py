"""The file of a swarm's proofs: the expelled members, with the evidence.

One small file per swarm, the oldest proof first; and copies of it to show to others, which name the
swarm. The proofs are stored unverified; the reader checks the signatures (``protocol.evidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import ENOENT
from os import strerror
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.audit.charges import VotedOut
from protocol.evidence.expelled import MAX_PROOFS
from protocol.limits import MAX_ENVELOPE_BODY_BYTES
from protocol.wire.fields import SwarmText
from protocol.wire.parts import Proof

MAX_FILE_BYTES: Final = MAX_PROOFS * 2 * (MAX_ENVELOPE_BODY_BYTES + 256)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_PROOFS)]


class Shown(Struct, frozen=True, forbid_unknown_fields=True):
    """Evidence for others, unverified."""

    schema_version: Literal[1]
    swarm: SwarmText
    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_PROOFS)]
    voted_out: Annotated[tuple[VotedOut, ...], Meta(max_length=MAX_PROOFS)]


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


def load_shown(path: Path) -> Shown:
    """Return the evidence of a file made by ``save_shown``.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it does not exist or cannot be read.
    """
    shown = load_packed(path, Shown, MAX_FILE_BYTES)
    if shown is None:
        raise FileNotFoundError(ENOENT, strerror(ENOENT), str(path))
    return shown


def save_shown(path: Path, shown: Shown) -> None:
    """Write evidence to a file for others.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    save_packed(path, shown)

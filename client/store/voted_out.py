"""The file of the members that their stages have voted out, with the charges.

One small file per swarm, the oldest first. The charges are stored unverified; the reader checks the
signatures (``protocol.audit.charges``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.audit.charges import MAX_AUTHORS, VotedOut
from protocol.evidence.expelled import MAX_PROOFS

MAX_FILE_BYTES: Final = MAX_PROOFS * MAX_AUTHORS * 1024


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    voted_out: Annotated[tuple[VotedOut, ...], Meta(max_length=MAX_PROOFS)]


def beside(proofs: Path) -> Path:
    """Return the path of the file beside that of a swarm's proofs."""
    return proofs.with_suffix(".voted-out")


def load_voted_out(path: Path) -> tuple[VotedOut, ...]:
    """Return the members of a file, unverified; none if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    file = load_packed(path, _File, MAX_FILE_BYTES)
    return file.voted_out if file else ()


def save_voted_out(path: Path, voted_out: Sequence[VotedOut]) -> None:
    """Replace the file with these members.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    save_packed(path, _File(1, tuple(voted_out)))

"""The file of a swarm's proofs: the expelled members, with the evidence.

One small file per swarm, the oldest proof first. The proofs are stored unverified; the reader
checks the signatures (``protocol.evidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from protocol.evidence.expelled import MAX_PROOFS
from protocol.limits import MAX_ENVELOPE_BODY_BYTES
from protocol.wire.parts import Proof

MAX_FILE_BYTES: Final = MAX_PROOFS * 2 * (MAX_ENVELOPE_BODY_BYTES + 256)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_PROOFS)]


class DamagedProofs(Exception):
    """The file exists but does not contain proofs."""


def load_proofs(path: Path) -> tuple[Proof, ...]:
    """Return the proofs of a file, unverified; none if there is no file.

    Raises:
        DamagedProofs: it is too long or malformed.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            encoded = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    if len(encoded) > MAX_FILE_BYTES:
        raise DamagedProofs(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    try:
        return msgspec.msgpack.decode(encoded, type=_File).proofs
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedProofs(f"{path} is damaged: {error}") from error


def save_proofs(path: Path, proofs: Sequence[Proof]) -> None:
    """Replace the file with these proofs.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.msgpack.encode(_File(1, tuple(proofs))))

"""The file of a swarm's certificates: by what each expelled member is out, for anybody to check.

One small file per swarm, the oldest first; a copy of it is shown to others. Certificates are stored
unverified; the reader checks the signatures (``protocol.evidence``, ``protocol.audit.charges``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.limits import MAX_ENVELOPE_BODY_BYTES, MAX_REPLICAS_IN_ROUND
from protocol.verdicts import MAX_CERTIFICATES
from protocol.wire.fields import SwarmText
from protocol.wire.parts import Proof, VotedOut

MAX_CHARGE_BYTES: Final = 1024
MAX_FILE_BYTES: Final = MAX_CERTIFICATES * (
    2 * (MAX_ENVELOPE_BODY_BYTES + 256) + MAX_REPLICAS_IN_ROUND * MAX_CHARGE_BYTES
)


class Certificates(Struct, frozen=True, forbid_unknown_fields=True):
    """What convicts the expelled members of a swarm, unverified."""

    schema_version: Literal[1]
    swarm: SwarmText
    proofs: Annotated[tuple[Proof, ...], Meta(max_length=MAX_CERTIFICATES)]
    voted_out: Annotated[tuple[VotedOut, ...], Meta(max_length=MAX_CERTIFICATES)]


def load_certificates(path: Path) -> Certificates | None:
    """Return the certificates of a file, unverified; None if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    return load_packed(path, Certificates, MAX_FILE_BYTES)


def save_certificates(path: Path, certificates: Certificates) -> None:
    """Replace the file with these certificates.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    save_packed(path, certificates)

"""The file of a swarm's match records, signed by this volunteer and its stewards.

One small file per swarm, the oldest record first. The records are stored unverified; the reader
checks the signatures (``protocol.matching.record``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.matching.record import MatchRecord

MAX_RECORDS: Final = 64
MAX_FILE_BYTES: Final = 512 * 1024
"""A record is two bodies of a kilobyte at most, with their signatures."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    records: Annotated[tuple[MatchRecord, ...], Meta(max_length=MAX_RECORDS)]


def load_records(path: Path) -> tuple[MatchRecord, ...]:
    """Return the records of a file, unverified; none if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    file = load_packed(path, _File, MAX_FILE_BYTES)
    return file.records if file else ()


def save_records(path: Path, records: Sequence[MatchRecord]) -> None:
    """Replace the file with the last ``MAX_RECORDS`` of these records.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    save_packed(path, _File(1, tuple(records[-MAX_RECORDS:])))

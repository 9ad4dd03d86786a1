"""The file of a swarm's match records, signed by this volunteer and its stewards.

One small file per swarm, the oldest record first. The records are stored unverified; the reader
checks the signatures (``protocol.matching.record``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from protocol.matching.record import MatchRecord

MAX_RECORDS: Final = 64
MAX_FILE_BYTES: Final = 512 * 1024
"""A record is two bodies of a kilobyte at most, with their signatures."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    records: Annotated[tuple[MatchRecord, ...], Meta(max_length=MAX_RECORDS)]


class DamagedFile(Exception):
    """The file exists but does not contain match records."""


def load_records(path: Path) -> tuple[MatchRecord, ...]:
    """Return the records of a file, unverified; none if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            encoded = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    if len(encoded) > MAX_FILE_BYTES:
        raise DamagedFile(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    try:
        return msgspec.msgpack.decode(encoded, type=_File).records
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def save_records(path: Path, records: Sequence[MatchRecord]) -> None:
    """Replace the file with the last ``MAX_RECORDS`` of these records.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.msgpack.encode(_File(1, tuple(records[-MAX_RECORDS:]))))

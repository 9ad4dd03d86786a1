"""A bounded file with one typed record, as MessagePack."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from client.decoding import packed_decoder
from client.store.atomic import write_atomic
from client.store.paths import create_folders

RecordT = TypeVar("RecordT", bound=Struct)


class DamagedFile(Exception):
    """The file exists but does not contain what it should."""


def load_packed(path: Path, kind: type[RecordT], max_bytes: int) -> RecordT | None:
    """Return the record in a file; none if there is no file.

    Args:
        path: the file.
        kind: the type of its record.
        max_bytes: a longer file is not decoded.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            encoded = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    if len(encoded) > max_bytes:
        raise DamagedFile(f"{path} is longer than {max_bytes} bytes")
    try:
        return packed_decoder(kind).decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def save_packed(path: Path, record: Struct) -> None:
    """Replace a file, readable by its owner alone, with a record.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    create_folders(path.parent)
    write_atomic(path, msgspec.msgpack.encode(record))

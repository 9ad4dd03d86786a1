"""The file of a swarm's chain of waypoints.

One small file per swarm, the oldest link first. It is stored unverified; the reader checks the
signatures (``protocol.waypoints``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from client.store.atomic import write_atomic
from protocol.limits import MAX_HEADER_BYTES
from protocol.waypoints.chain import MAX_LINKS
from protocol.wire.parts import WaypointLink

MAX_FILE_BYTES: Final = MAX_LINKS * MAX_HEADER_BYTES


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    links: Annotated[tuple[WaypointLink, ...], Meta(max_length=MAX_LINKS)]


class DamagedChain(Exception):
    """The file exists but does not contain a chain."""


def load_chain(path: Path) -> tuple[WaypointLink, ...]:
    """Return the chain of a file, unverified; none if there is no file.

    Raises:
        DamagedChain: it is too long or malformed.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            encoded = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    if len(encoded) > MAX_FILE_BYTES:
        raise DamagedChain(f"{path} is longer than {MAX_FILE_BYTES} bytes")
    try:
        return msgspec.msgpack.decode(encoded, type=_File).links
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedChain(f"{path} is damaged: {error}") from error


def save_chain(path: Path, links: Sequence[WaypointLink]) -> None:
    """Replace the file with this chain.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.msgpack.encode(_File(1, tuple(links))))

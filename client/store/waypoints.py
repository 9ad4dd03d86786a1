"""The file of a swarm's chain of waypoints.

One small file per swarm, the oldest link first. It is stored unverified; the reader checks the
signatures (``protocol.waypoints``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from client.store.packed import load_packed, save_packed
from protocol.limits import MAX_HEADER_BYTES
from protocol.waypoints.chain import MAX_LINKS
from protocol.wire.parts import WaypointLink

MAX_FILE_BYTES: Final = MAX_LINKS * MAX_HEADER_BYTES


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: Literal[1]
    links: Annotated[tuple[WaypointLink, ...], Meta(max_length=MAX_LINKS)]


def load_chain(path: Path) -> tuple[WaypointLink, ...]:
    """Return the chain of a file, unverified; none if there is no file.

    Raises:
        DamagedFile: it is too long or malformed.
        OSError: it cannot be read.
    """
    file = load_packed(path, _File, MAX_FILE_BYTES)
    return file.links if file else ()


def save_chain(path: Path, links: Sequence[WaypointLink]) -> None:
    """Replace the file with this chain.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    save_packed(path, _File(1, tuple(links)))

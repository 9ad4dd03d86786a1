"""Who was in a swarm with this volunteer, and how far the swarm was then: one small file.

Nothing is known where the file is missing or damaged: then a swarm that comes back waits longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from client.store.atomic import write_atomic
from protocol.restore.company import MAX_COMPANIONS, Companion

FILE_NAME: Final = "company.bin"
MAX_FILE_BYTES: Final = 256 * MAX_COMPANIONS


def load_company(folder: Path) -> tuple[Companion, ...] | None:
    """Return what was kept in a swarm's checkpoint folder; None if there is nothing sound."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
        return msgspec.msgpack.decode(data, type=tuple[Companion, ...])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_company(folder: Path, companions: Iterable[Companion]) -> None:
    """Keep it; raises ``OSError`` if the disk does not take it (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE_NAME, msgspec.msgpack.encode(tuple(companions)))

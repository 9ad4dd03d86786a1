"""The members last seen in a swarm, and its progress then: one small file.

If the file is missing or damaged nothing is known, and a restarted swarm waits longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from client.store.atomic import write_atomic
from protocol.recovery.company import MAX_COMPANIONS, Companion

FILE_NAME: Final = "company.bin"
MAX_FILE_BYTES: Final = 256 * MAX_COMPANIONS
_companions = msgspec.msgpack.Decoder(tuple[Companion, ...])


def load_company(folder: Path) -> tuple[Companion, ...] | None:
    """Return the members kept in a swarm's checkpoint folder; None without a valid file."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
        return _companions.decode(data)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_company(folder: Path, companions: Iterable[Companion]) -> None:
    """Save the members; raises ``OSError`` if the disk refuses (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE_NAME, msgspec.msgpack.encode(tuple(companions)))

"""Which lineage of a swarm this volunteer followed when it was last here: one small file.

A damaged file is none: then the swarm's others say where the run stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from client.store.atomic import write_atomic
from protocol.restore.stored import Lineage

FILE_NAME: Final = "lineage.bin"
MAX_FILE_BYTES: Final = 64 * 1024


def load_lineage(folder: Path) -> Lineage:
    """Return what was kept in a swarm's checkpoint folder; the first lineage if nothing was."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return msgspec.msgpack.decode(file.read(MAX_FILE_BYTES), type=Lineage)
    except (OSError, msgspec.MsgspecError):
        return Lineage()


def save_lineage(folder: Path, lineage: Lineage) -> None:
    """Keep a lineage; raises ``OSError`` if the disk does not take it (the old file stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE_NAME, msgspec.msgpack.encode(lineage))

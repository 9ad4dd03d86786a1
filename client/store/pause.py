"""A pause that outlives the process: one small file beside the identity."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from client.store.atomic import write_atomic
from client.store.paths import Entry

FILE_NAME = Entry.PAUSED


class KeptPause(Struct, frozen=True):
    """A pause by the owner. Times are Unix seconds."""

    reason: str
    since: float
    until: float | None = None


def load_pause(folder: Path) -> KeptPause | None:
    """Return the saved pause; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=KeptPause)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def save_pause(folder: Path, pause: KeptPause | None) -> None:
    """Save a pause, or remove it (None); raises ``OSError``."""
    if pause is None:
        (folder / FILE_NAME).unlink(missing_ok=True)
    else:
        write_atomic(folder / FILE_NAME, msgspec.json.encode(pause))

"""Bytes sent and received in a day of the local clock. Pure; whoever holds it keeps it on disk."""

from __future__ import annotations

from datetime import date

import msgspec
from msgspec import Struct

MAX_FILE_BYTES = 1024


class DayUse(Struct, frozen=True):
    """What one day has taken."""

    day: date
    used_bytes: int = 0

    def add(self, today: date, more_bytes: int) -> DayUse:
        """Return the use after more bytes; a new day begins at nothing."""
        before = self.used_bytes if today == self.day else 0
        return DayUse(today, before + max(0, more_bytes))


def encode_use(use: DayUse) -> bytes:
    """Return what is written to disk."""
    return msgspec.json.encode(use)


def decode_use(data: bytes) -> DayUse | None:
    """Return what was written; None if it cannot be that."""
    try:
        use = msgspec.json.decode(data[:MAX_FILE_BYTES], type=DayUse)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return use if 0 <= use.used_bytes < 2**63 else None

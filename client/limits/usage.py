"""Bytes sent and received per day of the local clock. Pure; the caller saves it."""

from __future__ import annotations

from datetime import date

import msgspec
from msgspec import Struct

MAX_FILE_BYTES = 1024


class DayUse(Struct, frozen=True):
    """The traffic of one day."""

    day: date
    used_bytes: int = 0

    def add(self, today: date, more_bytes: int) -> DayUse:
        """Return the use after more bytes; a new day starts at 0."""
        before = self.used_bytes if today == self.day else 0
        return DayUse(today, before + max(0, more_bytes))


def encode_use(use: DayUse) -> bytes:
    """Return the encoding for the file."""
    return msgspec.json.encode(use)


def decode_use(data: bytes) -> DayUse | None:
    """Parse the file's content; None if it is invalid."""
    try:
        use = msgspec.json.decode(data[:MAX_FILE_BYTES], type=DayUse)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return use if 0 <= use.used_bytes < 2**63 else None

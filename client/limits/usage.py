"""Bytes sent and received per day of the local clock. Pure; the caller saves it."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from msgspec import Meta, Struct


class DayUse(Struct, frozen=True):
    """The traffic of one day."""

    day: date
    used_bytes: Annotated[int, Meta(ge=0, lt=2**53)] = 0

    def add(self, today: date, more_bytes: int) -> DayUse:
        """Return the use after more bytes; a new day starts at 0."""
        before = self.used_bytes if today == self.day else 0
        return DayUse(today, before + max(0, more_bytes))

"""The numbers of our signed records: none is given out twice, whatever becomes of the clock.

A file holds a number above all that were given out; it is written before they reach it. It is not
for two processes: a home that is copied to a second machine signs against itself.
"""

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from client.store.persisted import Persisted

AHEAD: Final = 60_000
"""Numbers are milliseconds of the clock as long as it goes on: one write a minute at most."""
Number = Annotated[int, Meta(ge=0, le=2**47)]


class Numbers:
    """Gives out rising numbers. Without a file they rise as long as the process lives."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = Persisted[int](path, Number)
        self._last = self._kept = self._file.peek() or 0

    def next(self, at_least: int) -> int:
        """Return a number above all before, and not below ``at_least``. If the disk refuses, it is
        tried again with the next one: that must not stop training."""
        self._last = max(self._last + 1, at_least)
        if self._last >= self._kept and self._file.keep(self._last + AHEAD):
            self._kept = self._last + AHEAD
        return self._last

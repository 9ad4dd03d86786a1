"""The numbers of our signed records: none is given out twice, whatever becomes of the clock.

A file holds a number above all that were given out; it is written before they reach it. So they
rise over a crash and over a reboot with the clock set back. The file is not for two processes: a
home that is copied to a second machine has numbers of its own there, and signs against itself.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from client.store.atomic import write_atomic

AHEAD: Final = 60_000
"""Numbers are milliseconds of the clock as long as it goes on: one write a minute at most."""
MAX_KEPT: Final = 2**47


class Numbers:
    """Gives out rising numbers. Without a file they rise as long as the process lives."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last = self._kept = _read(path)

    def next(self, at_least: int) -> int:
        """Return a number above all before, and not below ``at_least``."""
        self._last = max(self._last + 1, at_least)
        if self._last >= self._kept:
            self._keep(self._last + AHEAD)
        return self._last

    def _keep(self, until: int) -> None:
        if self._path is not None:
            with suppress(OSError):  # a full disk must not stop training: tried again with the next
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomic(self._path, b"%d\n" % until)
                self._kept = until


def _read(path: Path | None) -> int:
    """Return the number of a file; 0 if there is none that can be read."""
    try:
        kept = int(path.read_bytes()[:32]) if path is not None else 0
    except (OSError, ValueError):
        return 0
    return kept if 0 <= kept <= MAX_KEPT else 0

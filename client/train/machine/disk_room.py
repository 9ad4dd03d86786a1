"""Pauses the node while its disk lacks the room for a stage, so that others can take the stage.

A stage that is held already goes on training without room: its steps are work, and what cannot be
saved yet stays in memory (``stage/saver.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from client.train.machine.limiting import Holdable

CAUSE: Final = "disk"
LOOK_S: Final = 5.0
AGAIN_S: Final = 600.0
"""After so long it is tried again in any case: a liar may have said that more is needed."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What a stage needed of the disk and did not get."""

    words: str
    folder: Path
    needed_bytes: int


def free_bytes(folder: Path) -> int:
    """Return the free bytes of a folder's disk; all that is needed, if that is unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 1 << 62


class DiskRoom:
    """See the module's docstring."""

    def __init__(self, pauses: Holdable, free: Callable[[Path], int] = free_bytes) -> None:
        self._pauses, self._free = pauses, free
        self._lack: Lack | None = None
        self._until = 0.0

    def lacks(self, lack: Lack) -> None:
        """A stage does not fit on the disk: pause until it does."""
        self._lack, self._until = lack, trio.current_time() + AGAIN_S
        self._pauses.hold(CAUSE, f"{lack.words}; training goes on when there is room")

    def look(self) -> None:
        """End the pause if there is room now."""
        lack = self._lack
        if lack is None:
            return
        if self._free(lack.folder) >= lack.needed_bytes or trio.current_time() >= self._until:
            self._lack = None
            self._pauses.release(CAUSE)

    async def run(self) -> None:
        """Look every few seconds until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()

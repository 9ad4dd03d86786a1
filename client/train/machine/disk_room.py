"""The room that a stage lacks on the disk: the node pauses, so that others can take the stage.

A stage that is held already goes on training without room: its steps are work, and what cannot be
saved yet stays in memory (``stage/saver.py``).
"""

import shutil
from pathlib import Path
from typing import Final

import trio

from client.errors import UserError

AGAIN_S: Final = 600.0
"""After so long it is tried again in any case: a liar may have said that more is needed."""


class NoRoom(UserError):
    """The disk of a folder has no room for so many bytes, which a stage needs."""

    def __init__(self, words: str, folder: Path, needed_bytes: int) -> None:
        super().__init__(words, "make room on that disk")
        self._folder, self._needed_bytes = folder, needed_bytes
        self._until = trio.current_time() + AGAIN_S

    def is_over(self) -> bool:
        """Whether there may be room now."""
        try:
            free_bytes = shutil.disk_usage(self._folder).free
        except OSError:
            return True
        return free_bytes >= self._needed_bytes or trio.current_time() >= self._until

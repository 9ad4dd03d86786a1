"""The room that a stage lacks on the disk: the node pauses, so that others can take the stage.

A stage that is held already goes on training without room: its steps are work, and what cannot be
saved yet stays in memory (``stage/saver.py``).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

AGAIN_S: Final = 600.0
"""After so long it is tried again in any case: a liar may have said that more is needed."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What a stage needed of the disk and did not get."""

    words: str
    folder: Path
    needed_bytes: int
    since: float = field(default_factory=trio.current_time)

    def is_over(self) -> bool:
        """Whether there may be room now."""
        try:
            free_bytes = shutil.disk_usage(self.folder).free
        except OSError:
            return True
        return free_bytes >= self.needed_bytes or trio.current_time() >= self.since + AGAIN_S

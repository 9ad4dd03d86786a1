"""Working copies of stages that a process which was killed has left behind.

What is handed to newcomers and what newcomers fetch goes when it is done with, but not when the
process is killed. Each is as large as a stage, so whoever holds the folder next removes them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

RESUMED: Final = ".begin-*-v{}.safetensors.part.tmp"
"""Begun downloads of a version with which the next process goes on: they stay."""


def sweep_copies(folder: Path, version: int | None = None) -> int:
    """Remove the working copies in ``folder``; return how many.

    Only at the start of the process that holds the identity's lock: nobody else uses the folder.
    What cannot be removed stays.

    Args:
        version: at which the lineage begins; nobody goes on with downloads of others. None: it is
            not known.
    """
    resumed = RESUMED.format("*" if version is None else version)
    removed = 0
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if path.match(resumed) or not (path.is_file() or path.is_symlink()):
                continue
            with suppress(OSError):
                path.unlink()
                removed += 1
    return removed

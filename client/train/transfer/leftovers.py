"""Removes working copies of stages that a killed process left behind.

Snapshots for newcomers and downloads are normally removed after use, but not if the process is
killed. Each is as large as a stage, so the next process that owns the folder removes them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

RESUMED: Final = ".begin-*-v{}.safetensors.part.tmp"
"""Partial downloads of a version that the next process can continue: they stay."""


def sweep_copies(folder: Path, version: int | None = None) -> int:
    """Remove the working copies in ``folder``; return how many.

    Call it only at the start of the process that holds the identity's lock, so that no other
    process uses the folder. Files that cannot be removed stay.

    Args:
        folder: the folder of working copies.
        version: version at which the lineage begins; downloads of others are useless. None: it is
            unknown.
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

"""The processor time that this process and all its descendants have used."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return seconds of this process and its descendants, those that have ended included.

    Elsewhere than on Linux, descendants count once they have ended.
    """
    ended = os.times()
    living = sum(_seconds(pid) for pid in _below(os.getpid()))
    return sum(ended[:4]) + living


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    return found


def _seconds(pid: int) -> float:
    """Return what a process used, and those that it has waited for."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = said.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S

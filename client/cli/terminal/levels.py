"""The levels of importance in flags and logs."""

from __future__ import annotations

from typing import get_args

from client.cli.terminal.output import one_line
from protocol.effects import Level

ORDER = get_args(Level)


def at_least(level: str, least: Level) -> bool:
    """Whether to show an event of a level; those of unknown levels are shown."""
    return level not in ORDER or ORDER.index(level) >= ORDER.index(least)


def with_level(level: str, words: str) -> str:
    """Return words as one line, behind their level where it matters."""
    return f"{level}: {one_line(words)}" if level in ("warning", "error") else one_line(words)

"""How important something is, as flags and logs name it."""

from __future__ import annotations

from typing import Final, Literal

from client.cli.terminal.output import one_line

LevelName = Literal["debug", "info", "warning", "error"]
ORDER: Final = ("debug", "info", "warning", "error")


def at_least(level: str, least: LevelName) -> bool:
    """Whether something of one level is to be shown; an unknown level is."""
    return level not in ORDER or ORDER.index(level) >= ORDER.index(least)


def with_level(level: str, words: str) -> str:
    """Return words as one line, behind their level where it is worth saying."""
    return f"{level}: {one_line(words)}" if level in ("warning", "error") else one_line(words)

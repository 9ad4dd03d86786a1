"""Writes a node's events as log lines: text or JSON on stderr, JSON in a file."""

import sys
import time
from collections.abc import Callable

from client.cli.logging.log_file import Line, LogFile
from client.cli.terminal.output import json_line, with_level
from client.config import Settings
from client.events import Event, at_least


def log_writer(
    settings: Settings, file: LogFile | None = None, *, quiet: bool = False
) -> Callable[[Event], None]:
    """Return a function that writes events of the chosen level and above.

    Args:
        settings: the level and the format of the log.
        file: also gets every line.
        quiet: write to ``file`` only.
    """
    spell = as_json if settings.log_format == "json" else as_text

    def write(event: Event) -> None:
        if not at_least(event.level, settings.log_level):
            return
        now = time.time()
        if file is not None:
            file.write(as_json(event, now))
        if quiet:
            return
        try:
            print(spell(event, now), file=sys.stderr, flush=True)
        except (OSError, ValueError):
            return  # the reader has ended; training continues

    return write


def as_text(event: Event, wall: float) -> str:
    """Return ``12:00:00 warning words``; the level only where it matters."""
    clock = time.strftime("%H:%M:%S", time.localtime(wall))
    return f"{clock} {with_level(event.level, event.words)}"


def as_json(event: Event, wall: float) -> str:
    """Return one JSON object, which ``log_file`` reads."""
    line = Line(round(wall, 3), event.level, event.words, type(event).__name__, event.data())
    return json_line(line)

"""What a node in this process says of its progress: a line in a terminal, a log line elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

import trio

from client.cli.output import printable
from client.cli.status_text import progress_line
from client.control.snapshot import Snapshot
from client.events import Event, LogLine

LOOK_S = 1.0
REPORT_S = 60.0


async def show_progress(snapshot: Callable[[], Snapshot]) -> None:
    """Redraw one line in a terminal, print changes elsewhere, until cancelled."""
    screen = ProgressLine()
    try:
        while True:
            screen.show(snapshot())
            await trio.sleep(LOOK_S)
    finally:
        screen.end()


async def report_progress(
    snapshot: Callable[[], Snapshot], write: Callable[[Event], None], every_s: float = REPORT_S
) -> None:
    """Write one line into the log every minute, until cancelled."""
    while True:
        await trio.sleep(every_s)
        write(LogLine(words=progress_line(snapshot())))


class ProgressLine:
    """One line that is drawn over itself in a terminal and appended elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown: tuple[str, int] | None = None

    def show(self, now: Snapshot) -> None:
        """Show how the node is."""
        text = printable(progress_line(now))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif self._shown != (now.state, now.step):
            print(text, file=sys.stderr, flush=True)
        self._shown = (now.state, now.step)

    def end(self) -> None:
        """Leave the cursor on a line of its own."""
        if self._terminal and self._shown is not None:
            print(file=sys.stderr, flush=True)

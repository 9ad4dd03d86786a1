"""What a node in this process says of its progress: a line in a terminal, a log line elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import trio

from client.cli.terminal.progress_line import ProgressLine
from client.cli.terminal.status_text import progress_line
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

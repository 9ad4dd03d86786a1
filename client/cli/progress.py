"""The line that ``join`` shows in a terminal, read from the node's own control socket.

Holds no state of the node: it is a guest like any other program that attaches. In a pipe it prints
a line per change of step or state instead of redrawing one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import trio

from client.cli.output import printable
from client.cli.status_text import progress_line
from client.control.client import ControlClient, ControlError, running_nodes
from client.control.snapshot import Snapshot

POLL_S = 1.0


async def show_progress(folder: Path) -> None:
    """Show the progress of the node whose socket is in ``folder``, until cancelled."""
    screen = _Line()
    try:
        while True:
            await trio.sleep(POLL_S)
            now = await trio.to_thread.run_sync(_ask, folder)
            if now is not None:
                screen.show(now)
    finally:
        screen.end()


def _ask(folder: Path) -> Snapshot | None:
    try:
        for path, _ in running_nodes(folder):
            with ControlClient(path) as control:
                return control.status()
    except ControlError:
        pass  # starting or stopping; the next poll will tell
    return None


class _Line:
    """One line that is drawn over itself in a terminal and appended elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown: tuple[str, int] | None = None

    def show(self, now: Snapshot) -> None:
        text = printable(progress_line(now))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif self._shown != (now.state, now.step):
            print(text, file=sys.stderr, flush=True)
        self._shown = (now.state, now.step)

    def end(self) -> None:
        if self._terminal and self._shown is not None:
            print(file=sys.stderr, flush=True)

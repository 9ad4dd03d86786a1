"""The node's status as one line: redrawn in a terminal, appended elsewhere."""

from __future__ import annotations

import shutil
import sys

from client.cli.terminal.output import printable
from client.control.snapshot import Snapshot
from client.views.status import one_line as progress_line


class ProgressLine:
    """One line that is redrawn in a terminal and appended elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown: tuple[str, int] | None = None

    def show(self, now: Snapshot) -> None:
        """Show the node's status."""
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

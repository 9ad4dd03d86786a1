"""Questions about leaving: detach or finish, with the costs of each; or finish alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.events import Key

from client.ui.dialogs.dialog import Dialog
from client.ui.leaving import Way
from client.views.span import Box, Line, line
from client.views.text import wrap


class AskDialog(Dialog[str | None]):
    """Answers with the name of the chosen way, None without a choice.

    Args:
        title: the question.
        ways: returns the present choices, each with its key; called again on every change, because
            the node may end while the dialog is open.
    """

    def __init__(self, title: str, ways: Callable[[], Sequence[Way]]) -> None:
        self._ways = ways
        super().__init__(title, self._lines)

    def on_key(self, event: Key) -> None:
        """Choose by key; q, n and Ctrl-C mean no."""
        ways = self._ways()
        for way in ways:
            if event.key == way.key or (event.key == "enter" and len(ways) == 1):
                event.stop()
                self.answer(way.name)
                return
        if event.key in ("q", "n", "ctrl+c"):
            event.stop()
            self.answer(None)

    def _lines(self, box: Box) -> list[Line]:
        lines: list[Line] = []
        for way in self._ways():
            lines.append(line((f"{way.key} ", "key"), (way.title, "strong")))
            lines += [line((f"  {part}", way.tone)) for part in wrap(way.cost, box.width - 4, 4)]
            lines.append(())
        return [*lines, line(("Esc ", "key"), ("stay", "muted"))]

"""Changing one setting."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.widgets import Input

from client.ui.dialogs.dialog import Dialog
from client.views.settings import Setting
from client.views.span import Box, Line, line
from client.views.text import wrap


class EditDialog(Dialog[str | None]):
    """Answers with the new text, None if it stays as it is."""

    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    EditDialog #frame > Input { margin: 0; border: round $primary; background: $surface; }
    """

    def __init__(self, setting: Setting, words: Sequence[str]) -> None:
        self._setting, self._words = setting, words
        super().__init__(setting.name, self._lines, 5)

    def above(self) -> ComposeResult:
        """Place the input."""
        yield Input(value="" if self._setting.empty else self._setting.value, id="value")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer."""
        self.answer(event.value)

    def _lines(self, box: Box) -> list[Line]:
        parts = [part for words in self._words for part in wrap(words, box.width, 3)]
        return [line((part, "muted")) for part in parts]

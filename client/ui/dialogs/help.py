"""All keys, and the meaning of the marks."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from client.ui.dialogs.dialog import Dialog
from client.ui.keys import KEYS, REPLAY_KEYS
from client.ui.model.span import Box, Line, Span, line
from client.ui.model.stages import LEGEND
from client.ui.text import fit


class HelpDialog(Dialog[None]):
    """Closed with Escape, ? or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q,enter", "close", show=False)]

    def __init__(self, live: bool) -> None:
        self._keys = KEYS if live else tuple(k for k in KEYS if k[0] not in "pfi") + REPLAY_KEYS
        super().__init__("Help", self._lines, len(self._keys) + 2)

    def _lines(self, box: Box) -> list[Line]:
        keys = [(Span(fit(key, 9), "key"), Span(said)) for key, said in self._keys]
        return [*keys, (), line(("marks    ", "key"), *LEGEND)]

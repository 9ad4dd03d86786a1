"""All keys, and the meaning of the marks."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from client.ui.dialogs.dialog import Dialog
from client.ui.keys import KEYS
from client.views.span import Box, Line, Span, line
from client.views.stages import LEGEND
from client.views.text import fit


class HelpDialog(Dialog[None]):
    """Closed with Escape, ? or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,q,enter", "close", show=False)]

    def __init__(self) -> None:
        super().__init__("Help", self._lines)

    def _lines(self, box: Box) -> list[Line]:
        keys = [(Span(fit(key, 9), "key"), Span(said)) for key, said in KEYS]
        return [*keys, (), line(("marks    ", "key"), *LEGEND)]

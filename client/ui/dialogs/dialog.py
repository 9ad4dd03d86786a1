"""The base of all dialogs: a frame in the middle with lines in it, closed with Escape."""

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from client.ui.widgets.panel import Panel, View
from client.views.span import Box

Result = TypeVar("Result")

CELLS = 70
"""Of a line."""
FRAME_LINES = 4
PAGE_LINES = 16
"""Of what may be longer."""


class Dialog(ModalScreen[Result]):
    """A title and lines from a view; dialogs differ in their keys. ``lines``: how many it shows;
    None: as many as the view has."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", show=False)]
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog #frame { width: 76; max-width: 96%; height: auto; max-height: 96%; }
    Dialog #frame { background: $surface; }
    Dialog #frame > Panel { background: $surface; border: round $primary; padding: 1 2; }
    """

    def __init__(self, title: str, view: View, lines: int | None = None) -> None:
        super().__init__()
        self._title, self._view, self._lines_shown = title, view, lines
        self._answered = False

    def compose(self) -> ComposeResult:
        """Place the frame."""
        with Vertical(id="frame"):
            panel = Panel(self._title, self._view)
            panel.styles.height = self._height()
            yield panel

    def show(self) -> None:
        """Refresh the view and fit the dialog to it: node and terminal may have changed."""
        for panel in self.query(Panel):
            panel.styles.height = self._height()
            panel.show()

    def _height(self) -> int:
        lines = self._lines_shown
        return FRAME_LINES + (len(self._view(Box(CELLS))) if lines is None else lines)

    def action_close(self) -> None:
        """Close without an answer."""
        self.answer(None)

    def answer(self, result: Result | None) -> None:
        """Close with an answer; keys pressed until it has closed are ignored."""
        if not self._answered:
            self._answered = True
            self.dismiss(result)


class Page(Dialog[None]):
    """Something to read; closed with Enter, ? and q as well."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,question_mark,q", "close", show=False)]

"""Asks whether to finish, with what that costs."""

from collections.abc import Callable

from textual.events import Key

from client.ui.dialogs.dialog import Dialog
from client.ui.leaving import Cost
from client.views.span import Box, Line, line
from client.views.text import wrap


class FinishDialog(Dialog[bool | None]):
    """Answers True where the user agrees.

    Args:
        cost: returns the present one; called again on every change, because the node may end while
            the dialog is open.
    """

    def __init__(self, cost: Callable[[], Cost]) -> None:
        self._cost = cost
        super().__init__("Finish?", self._lines)

    def on_key(self, event: Key) -> None:
        """Agree with f or Enter while there is something to finish; q, n and Ctrl-C mean no."""
        if event.key in ("f", "enter") and self._cost().possible:
            event.stop()
            self.answer(True)
        elif event.key in ("q", "n", "ctrl+c"):
            event.stop()
            self.answer(None)

    def _lines(self, box: Box) -> list[Line]:
        cost = self._cost()
        lines = [line((part, cost.tone)) for part in wrap(cost.words, box.width, 5)]
        finish = (("f ", "key"), ("finish   ", "strong")) if cost.possible else ()
        return [*lines, (), line(*finish, ("Esc ", "key"), ("stay", "muted"))]

"""All facts of one row."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from client.ui.dialogs.dialog import Dialog, View

LINES = 16


class DetailDialog(Dialog[None]):
    """Closed with Escape, Enter or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "close", show=False)]

    def __init__(self, title: str, view: View) -> None:
        super().__init__(title, view, LINES)

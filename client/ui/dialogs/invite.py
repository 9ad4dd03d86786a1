"""A fresh invite with its QR code, to be copied or scanned."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from client.control.snapshot import InviteView
from client.ui import themes
from client.ui.dialogs.dialog import CELLS, FRAME_LINES, Dialog
from client.ui.invite import SHARE, invite_lines
from client.views.span import Box, Line


class InviteDialog(Dialog[None]):
    """Closed with Escape, Enter, i or q; c copies."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,q,i", "close", show=False),
        Binding("c,x", "copy", show=False),
    ]

    def __init__(self, view: InviteView) -> None:
        self._invite = view
        super().__init__("Invite", self._lines)

    def action_copy(self) -> None:
        """Copy the invite to the clipboard."""
        self.app.copy_to_clipboard(self._invite.invite)
        self.notify("invite copied, if your terminal lets it", markup=False)

    def _lines(self, box: Box) -> list[Line]:
        room = int(SHARE * self.app.size.height) - FRAME_LINES
        return invite_lines(
            self._invite,
            Box(min(box.width, CELLS), room),
            light_on_dark=self.app.theme != themes.LIGHT,
        )

"""A fresh invite, to be copied."""

import shlex
from typing import ClassVar

from textual.binding import Binding, BindingType

from client.control.snapshot import InviteView
from client.ui.dialogs.dialog import Page
from client.views.span import Box, Line, line
from client.views.text import clean, wrap

MAX_CHARS = 4000


class InviteDialog(Page):
    """Closed with i, too; c copies."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "close", show=False),
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
        view, text = self._invite, clean(self._invite.invite, MAX_CHARS)
        # only full lines are broken: an invite has no blanks, and gets none when it is copied
        parts = [text[at : at + box.width] for at in range(0, len(text), max(1, box.width))]
        name = shlex.quote(f"{clean(view.swarm_name, 60)}.swarm")
        notes = [part for note in view.notes for part in wrap(clean(note), box.width)]
        return [
            *(line((part, "strong")) for part in parts),
            *(line((part, "warn")) for part in notes),
            (),
            line((f"or give a file: volunteer invite --out {name}", "muted")),
            (),
            line(("c ", "key"), ("copy it   ", "muted"), ("Esc ", "key"), ("close", "muted")),
        ]

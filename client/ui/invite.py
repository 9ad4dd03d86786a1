"""A fresh invite as the dialog shows it: text, notes, and a QR code where there is room. Pure."""

from __future__ import annotations

import math
import shlex

from client.control.snapshot import InviteView
from client.qr_code import qr_lines
from client.views.span import Box, Line, line
from client.views.text import clean, wrap

MAX_CHARS = 4000
SHARE = 0.96
"""Share of the terminal's height for a dialog, as in the stylesheet."""


def invite_lines(view: InviteView, box: Box, *, light_on_dark: bool = True) -> list[Line]:
    """Return the invite, and the longest QR code of it that fits into ``box``.

    If none fits, the text names the lines needed and offers a file instead.
    """
    text = clean(view.invite, MAX_CHARS)
    lines = [line((part, "strong")) for part in _pieces(text, box.width)]
    for note in view.notes:
        lines += [line((part, "warn")) for part in wrap(clean(note), box.width)]
    keys = line(("c ", "key"), ("copy it   ", "muted"), ("Esc ", "key"), ("close", "muted"))
    room = box.height - len(lines) - 3
    code, said = _code(view, box.width, room, light_on_dark)
    lines += [(), *(line((part, "strong")) for part in code)]
    lines += [line((part, "muted")) for part in wrap(said, box.width)]
    return [*lines, (), keys]


def _code(view: InviteView, width: int, height: int, light_on_dark: bool) -> tuple[list[str], str]:
    """Return the code, or the reason why there is none and what to do instead."""
    name = shlex.quote(f"{clean(view.swarm_name, 60)}.swarm")
    instead = f"or give a file: volunteer invite --out {name}"
    codes = [qr_lines(text, light_on_dark=light_on_dark) for text in view.short]
    fitting = [code for code in codes if len(code) <= height and len(code[0]) <= width]
    if fitting:
        return fitting[0], ""
    smallest = codes[-1]
    more = math.ceil((len(smallest) - height) / SHARE)
    words = f"a QR code takes {len(smallest)} lines of {len(smallest[0])} columns"
    missing = f"; this terminal needs {more} more lines" if more > 0 else ""
    return [], f"{words}{missing}; {instead}"


def _pieces(text: str, cells: int) -> list[str]:
    """Break only full lines: an invite has no blanks, and gets none when it is copied."""
    return [text[at : at + cells] for at in range(0, len(text), max(1, cells))]

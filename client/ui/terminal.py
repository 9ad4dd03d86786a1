"""The terminal's abilities, by its environment, and lines without colour."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter


def prefers_light(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, ``15;0`` is dark)."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


@lru_cache(4096)
def _bare(style: Style) -> Style:
    return Style(
        bold=style.bold,
        italic=style.italic,
        underline=style.underline,
        reverse=style.reverse,
        strike=style.strike,
    )


class Colourless(LineFilter):
    """Removes colours; bold, underline and reverse stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without colour."""
        return [
            Segment(text, _bare(style) if style else style, control)
            for text, style, control in segments
        ]

"""The base of what is drawn here: paints lines of toned text in the theme's colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from client.ui.model.span import TONES, Line

TONE_CSS = "\n".join(f"    & > .tone--{tone} {{ color: $tone-{tone}; }}" for tone in TONES)


class Toned(Widget):
    """A widget that turns lines into strips. Text is never parsed as markup."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tone--{tone}" for tone in TONES}
    DEFAULT_CSS = f"""
    Toned {{
{TONE_CSS}
        & > .tone--strong {{ text-style: bold; }}
        & > .tone--key {{ text-style: bold; }}
    }}
    """

    def paint(self, line: Line, width: int, over: Style | None = None) -> Strip:
        """Return a line as ``width`` cells.

        Args:
            line: what to say.
            width: cells to fill.
            over: laid over the tones, such as the background of a chosen row.
        """
        segments = []
        for span in line:
            style = self.get_component_rich_style(f"tone--{span.tone}")
            segments.append(Segment(span.text, style + over if over else style))
        base = self.rich_style + over if over else self.rich_style
        return Strip(segments).adjust_cell_length(width, base)

    def paint_at(self, lines: Sequence[Line], y: int) -> Strip:
        """Return line ``y`` of several, blank beyond them."""
        line = lines[y] if 0 <= y < len(lines) else ()
        return self.paint(line, self.content_size.width)

"""The base of the widgets: paints lines of toned text in the theme's colours."""

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from client.ui.themes import tone_styles
from client.views.span import Line


@lru_cache
def _clicked(action: str) -> Style:
    return Style(meta={"@click": f"app.{action}"}) if action else Style()


class Toned(Widget):
    """A widget that turns lines into strips. Text is never parsed as markup.

    Tones are looked up in the theme, not in the stylesheet: applying a stylesheet to a dozen tones
    of every widget would take most of the start.
    """

    def paint(self, line: Line, width: int, over: Style | None = None) -> Strip:
        """Return a line as ``width`` cells.

        Args:
            line: the text.
            width: cells to fill.
            over: laid over the tones, such as the background of a chosen row.
        """
        tones, base = tone_styles(self.app.theme), self.rich_style
        if over is not None:
            base += over
        segments = [
            Segment(span.text, base + tones[span.tone] + _clicked(span.action)) for span in line
        ]
        return Strip(segments).adjust_cell_length(width, base)

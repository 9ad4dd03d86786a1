"""A frame that shows as many lines as a view makes for its size."""

from collections.abc import Callable
from itertools import zip_longest

from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip

from client.ui.widgets.toned import Toned
from client.views.span import Box, Line

View = Callable[[Box], list[Line]]


def _changed(before: list[Line], after: list[Line]) -> list[int]:
    """Return the numbers of the changed lines."""
    found = zip_longest(before, after, fillvalue=None)
    return [number for number, (old, new) in enumerate(found) if old != new]


class Panel(Toned):
    """Shows the lines of its view; refreshes them when data or size change.

    Draws only the changed lines, which saves most on a slow connection.
    """

    DEFAULT_CSS = """
    Panel {
        border: round $frame;
        border-title-color: $tone-muted;
        border-title-style: bold;
        padding: 0 1;
    }
    """

    def __init__(self, title: str, view: View, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = title or None
        self._view = view
        self._lines: list[Line] = []

    @property
    def lines(self) -> list[Line]:
        """The lines to show."""
        return self._lines

    def show(self) -> None:
        """Refresh the view; draw only if it has changed."""
        size = self.content_size
        if size.width <= 0 or size.height <= 0:
            return
        before, self._lines = self._lines, self._view(Box(size.width, size.height))
        changed = _changed(before, self._lines)
        if changed:
            self.refresh(*(Region(0, y, size.width, 1) for y in changed))

    def on_resize(self, event: Resize) -> None:
        """Make the lines for the new size."""
        self._lines = []
        self.show()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        line = self._lines[y] if y < len(self._lines) else ()
        return self.paint(line, self.content_size.width)

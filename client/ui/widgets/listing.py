"""A scrolling list of rows with a head, a cursor, and rows of one or more lines.

Draws only the visible rows, so thousands of rows cost no more than a screenful.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from client.ui.themes import tone_styles
from client.ui.widgets.toned import Toned
from client.views.span import Box, Line, Row

REVERSE = Style(reverse=True)
View = Callable[[Box], tuple[Line, list[Row]]]


class Listing(Toned, ScrollView, can_focus=True):
    """Rows that can be walked through and opened.

    ``tail``: the list sticks to its end while the cursor is there, as a log does.
    """

    class Opened(Message):
        """A row was opened with Enter or a click."""

        def __init__(self, listing: Listing, key: str) -> None:
            super().__init__()
            self.listing, self.key = listing, key

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("enter", "open", "Details", show=False),
    ]
    DEFAULT_CSS = """
    Listing {
        border: round $frame;
        border-title-color: $tone-muted;
        border-title-style: bold;
        padding: 0 0 0 1;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        scrollbar-color: $frame;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        &:focus { border: round $primary; border-title-color: $primary; }
    }
    """

    def __init__(self, title: str, view: View, *, id: str, tail: bool = False) -> None:
        super().__init__(id=id)
        self.border_title = title
        self._view, self._tail = view, tail
        self._room = Region()
        """For which it was made."""
        self._head: Line = ()
        self._rows: list[Row] = []
        self._starts: list[int] = []
        """First line of each row, the head not counted."""
        self._cursor = -1

    @property
    def rows(self) -> list[Row]:
        """The rows to show."""
        return self._rows

    @property
    def chosen(self) -> str | None:
        """Key of the row under the cursor."""
        return self._rows[self._cursor].key if 0 <= self._cursor < len(self._rows) else None

    def show(self) -> None:
        """Refresh the view; the cursor stays on its row, or at the end of a tail."""
        room = self.scrollable_content_region
        if room.width <= 1 or room.height <= 0:
            return
        head, rows = self._view(Box(room.width - 1, room.height))
        if (room, head, rows) == (self._room, self._head, self._rows):
            return
        at_end = self._tail and self._cursor >= len(self._rows) - 1
        key, self._room, self._head, self._rows = self.chosen, room, head, rows
        self._starts, lines = [], 0
        for row in rows:
            self._starts.append(lines)
            lines += len(row.lines)
        self.virtual_size = Size(room.width, lines + self._head_lines)
        places = {row.key: place for place, row in enumerate(rows)}
        kept = places.get(key or "", min(max(self._cursor, 0), len(rows) - 1))
        self._cursor = len(rows) - 1 if at_end else kept
        self._follow()
        self.call_after_refresh(self._follow)  # once the new size counts
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        """Make the rows for the new size."""
        self.show()

    def on_click(self, event: Click) -> None:
        """Choose a row; a click on the chosen one opens it."""
        spot = event.get_content_offset(self)
        if spot is None or spot.y < self._head_lines or not self._rows:
            return
        place = self._place(spot.y - self._head_lines + self.scroll_offset.y)
        if place == self._cursor:
            self.action_open()
        elif place is not None:
            self._go(place)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._go(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        height = max(1, self.scrollable_content_region.height - self._head_lines)
        if 0 <= self._cursor < len(self._starts):
            target = max(0, self._starts[self._cursor] + by * height)
            self._go(max(0, bisect_right(self._starts, target) - 1))

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.chosen is not None:
            self.post_message(self.Opened(self, self.chosen))

    def render_line(self, y: int) -> Strip:
        """Draw one line of the visible part; the head stays."""
        width = self.scrollable_content_region.width
        if y < self._head_lines:
            return self.paint(self._head, width)
        at = y - self._head_lines + self.scroll_offset.y
        place = self._place(at)
        if place is None:
            return self.paint((), width)
        line = self._rows[place].lines[at - self._starts[place]]
        return self.paint(line, width, self._over(place) if line else None)

    @property
    def _head_lines(self) -> int:
        return 1 if self._head else 0

    def _over(self, place: int) -> Style | None:
        if place != self._cursor or not self.has_focus:
            return None
        return REVERSE if self.app.no_color else tone_styles(self.app.theme)["row"]

    def _place(self, at: int) -> int | None:
        place = bisect_right(self._starts, at) - 1
        if place < 0 or at >= self._starts[place] + len(self._rows[place].lines):
            return None
        return place

    def _go(self, place: int) -> None:
        if not self._rows:
            return
        self._cursor = min(max(place, 0), len(self._rows) - 1)
        self._follow()
        self.refresh()

    def _follow(self) -> None:
        """Scroll until the cursor's row is visible."""
        if not 0 <= self._cursor < len(self._rows):
            return
        top = self._starts[self._cursor]
        bottom = top + len(self._rows[self._cursor].lines)
        height = self.scrollable_content_region.height - self._head_lines
        seen = self.scroll_offset.y
        if top < seen:
            self.scroll_to(y=top, animate=False, force=True, immediate=True)
        elif bottom > seen + height:
            self.scroll_to(y=bottom - height, animate=False, force=True, immediate=True)

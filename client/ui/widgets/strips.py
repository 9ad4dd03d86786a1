"""The one-line bars: tabs above, keys below. Their items can be clicked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.events import Click
from textual.message import Message
from textual.strip import Strip

from client.ui.widgets.toned import Toned
from client.views.span import Line, Span, line_width


@dataclass(frozen=True, slots=True)
class Item:
    """An item that can be clicked: its spans and its action."""

    spans: Line
    action: str


class ItemBar(Toned):
    """A row of items."""

    class Clicked(Message):
        """An item was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    DEFAULT_CSS = """
    ItemBar { height: 1; width: 1fr; padding: 0 1; background: $surface; }
    """

    def __init__(self, *, id: str | None = None, gap: int = 2) -> None:
        super().__init__(id=id)
        self._items: tuple[Item, ...] = ()
        self._gap = gap

    def show(self, items: Sequence[Item]) -> None:
        """Show these items."""
        if tuple(items) != self._items:
            self._items = tuple(items)
            self.refresh()

    def on_click(self, event: Click) -> None:
        """Report the clicked item."""
        spot = event.get_content_offset(self)
        place = 0
        for item in self._items:
            end = place + line_width(item.spans)
            if spot is not None and place <= spot.x < end:
                self.post_message(self.Clicked(item.action))
            place = end + self._gap

    def render_line(self, y: int) -> Strip:
        """Draw the items that fit."""
        width, spans = self.content_size.width, list[Span]()
        for item in self._items:
            if line_width(tuple(spans)) + line_width(item.spans) > width:
                break
            spans += [*item.spans, Span(" " * self._gap)]
        return self.paint(tuple(spans), width)

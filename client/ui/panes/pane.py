"""The interface of every tab: show, filter, open a row."""

from collections.abc import Callable

from textual.containers import Container

from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views.record import Record
from client.views.span import Box, Line

Detail = tuple[str, Callable[[Box], list[Line]]]
"""Title and view of an opened row."""


class Pane(Container):
    """A tab. Holds no data of its own: its views read the record."""

    can_filter = False

    def __init__(self, record: Record, *, id: str) -> None:
        super().__init__(id=id)
        self.record = record
        self.filter_text = ""

    def show(self) -> None:
        """Refresh all views."""
        for panel in self.query(Panel):
            panel.show()
        for listing in self.query(Listing):
            listing.show()

    def filter_by(self, text: str) -> None:
        """Show only what contains these words."""
        self.filter_text = text
        self.show()

    def detail(self, key: str) -> Detail | None:
        """Return the details of the row, None if it has no more than it shows."""
        return None

    def take_focus(self) -> None:
        """Give the keys to the first list."""
        for listing in self.query(Listing):
            self.screen.set_focus(listing)  # at once: what is focused next keeps the keys
            return
        self.screen.set_focus(None)

"""Logs: all events of the node."""

from functools import partial

from textual.app import ComposeResult

from client.events import LEVELS
from client.ui.panes.pane import Detail, Pane
from client.ui.widgets.listing import Listing
from client.views import logs
from client.views.span import Box, Line, Row


class LogsPane(Pane):
    """Events by level and words."""

    can_filter = True
    level = 1

    def compose(self) -> ComposeResult:
        """Place the list."""
        yield Listing("Logs", self._view, id="log", tail=True)

    def show(self) -> None:
        """Update the title with the number and the choice of events shown."""
        level = LEVELS[self.level]
        title = logs.log_title(self.record, level, self.filter_text)
        self.query_one(Listing).border_title = title
        super().show()

    def next_level(self) -> None:
        """Show the next level and above."""
        self.level = (self.level + 1) % len(LEVELS)
        self.show()

    def detail(self, key: str) -> Detail | None:
        """Return one event in full."""
        return None if key == "none" else ("Event", partial(logs.event_details, self.record, key))

    def _view(self, box: Box) -> tuple[Line, list[Row]]:
        level = LEVELS[self.level]
        return (), logs.log_rows(self.record, box, level, self.filter_text)

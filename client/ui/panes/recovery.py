"""Recovery: faults, and the repair of each."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import timeline
from client.views.span import Box, Line, Row


class RecoveryPane(Pane):
    """A summary, one timeline per fault, and the events during the chosen one."""

    def compose(self) -> ComposeResult:
        """Place both."""
        yield Panel("Recovery", partial(timeline.recovery_head, self.record), id="recovery-head")
        yield Listing("Faults, newest first", self._rows, id="faults")
        yield Panel("Its events", self._story, id="story")

    def on_listing_moved(self, event: Listing.Moved) -> None:
        """Show the events of the chosen fault."""
        self.query_one("#story", Panel).show()

    def show(self) -> None:
        """Show the list first: the story is about its chosen row."""
        super().show()
        self.query_one("#story", Panel).show()

    def _story(self, box: Box) -> list[Line]:
        return timeline.story(self.record, self.query_one(Listing).chosen, box)

    def _rows(self, box: Box) -> tuple[Line, list[Row]]:
        return (), timeline.recovery_rows(self.record, box)

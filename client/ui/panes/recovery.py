"""Recovery: faults, and how each was made good."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.model import timeline
from client.ui.model.span import Box, Line, Row
from client.ui.panes.pane import Detail, Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel


class RecoveryPane(Pane):
    """A sum, then one timeline per fault."""

    def compose(self) -> ComposeResult:
        """Place both."""
        yield Panel("Recovery", partial(timeline.recovery_head, self.record), id="recovery-head")
        yield Listing("Faults, the newest first", self._rows, id="faults")

    def detail(self, key: str) -> Detail | None:
        """Return everything about a fault."""
        if key == "none":
            return None
        return "Fault", partial(timeline.incident_details, self.record, key)

    def _rows(self, box: Box) -> tuple[Line, list[Row]]:
        return (), timeline.recovery_rows(self.record, box)

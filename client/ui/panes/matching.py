"""Matching: our stages, our preferences, and the decisions."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.model import matching
from client.ui.model.span import Box, Line, Row
from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel


class MatchingPane(Pane):
    """Our seats, our preference list with its numbers, and the decisions."""

    def compose(self) -> ComposeResult:
        """Place the three."""
        yield Panel("What you hold", partial(matching.seats, self.record), id="seats")
        yield Listing(
            "Stages, the most wanted by you first (microbatches/s)",
            partial(matching.preferences, self.record),
            id="preferences",
        )
        yield Listing(
            "Proposals, acceptances, rejections and why", self._decisions, id="decisions", tail=True
        )

    def show(self) -> None:
        """Give the first panel the lines that it has."""
        found = self.record.matches
        lines = 1 + (max(1, len(found.seats)) if found else 1)
        if found is not None and self.app.size.height >= 36:
            lines += bool(found.stewardships) + bool(found.refused)
        self.query_one("#seats").styles.height = min(lines, 6) + 2
        super().show()

    def _decisions(self, box: Box) -> tuple[Line, list[Row]]:
        return (), matching.decisions(self.record, box)

"""Matching: which part of the model is whose, in plain words, and behind a key the numbers."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import matching, parts
from client.views.span import Box, Line, Row, cut

PLAIN, NUMBERS = "plain words", "numbers"


class MatchingPane(Pane):
    """Sentences about the parts of the model; or our seats, our preference list with its numbers,
    and the decisions."""

    other_view = NUMBERS

    def compose(self) -> ComposeResult:
        """Place both views."""
        yield Panel("Who does which part, and why", partial(parts.plain, self.record), id="parts")
        yield Panel("What you hold", partial(matching.seats, self.record), id="seats")
        yield Listing(
            "Stages, the most wanted by you first (microbatches/s)",
            partial(matching.preferences, self.record),
            id="preferences",
        )
        yield Listing(
            "Proposals, acceptances, rejections and why", self._decisions, id="decisions", tail=True
        )
        yield Panel(view=lambda box: [cut(matching.LEGEND, box.width)], id="words")

    def next_view(self) -> None:
        """Change between plain words and numbers."""
        self.other_view = PLAIN if self.other_view == NUMBERS else NUMBERS
        self.show()

    def show(self) -> None:
        """Show one view; give its first panel the lines that it has."""
        numbers = self.other_view == PLAIN
        self.query_one("#parts").display = not numbers
        for name in ("#seats", "#preferences", "#decisions", "#words"):
            self.query_one(name).display = numbers
        found = self.record.matches
        lines = 1 + (max(1, len(found.seats)) if found else 1)
        if found is not None and self.app.size.height >= 36:
            lines += bool(found.stewardships) + bool(found.refused)
        self.query_one("#seats").styles.height = min(lines, 6) + 2
        super().show()

    def _decisions(self, box: Box) -> tuple[Line, list[Row]]:
        return (), matching.decisions(self.record, box)

"""Matching: which stages are ours, and why."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import matching
from client.views.span import Box, Line, Row


class MatchingPane(Pane):
    """Sentences about our stages, and the decisions."""

    def compose(self) -> ComposeResult:
        """Place both."""
        sentences = partial(matching.sentences, self.record)
        yield Panel("Your stages, and why", sentences, id="sentences")
        yield Listing(
            "Proposals, acceptances, rejections and why", self._decisions, id="decisions", tail=True
        )

    def _decisions(self, box: Box) -> tuple[Line, list[Row]]:
        return (), matching.decisions(self.record, box)

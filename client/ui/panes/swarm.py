"""Swarm: the run as a whole and every stage of it."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.model import stages, swarm
from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel


class SwarmPane(Pane):
    """The run, and the stages with all their replicas."""

    def compose(self) -> ComposeResult:
        """Place head and table."""
        yield Panel("Swarm", partial(swarm.swarm_head, self.record), id="swarm-head")
        yield Listing("Stages", partial(stages.stage_table, self.record), id="stage-table")
        yield Panel(view=lambda box: [stages.LEGEND], id="legend")

    def show(self) -> None:
        """Give the head lines for what the model is for, if that is known."""
        now = self.record.snapshot
        purpose = swarm.purpose_lines(now, self.app.size.width - 4) if now is not None else []
        self.query_one("#swarm-head").styles.height = 7 + len(purpose)
        super().show()

"""Swarm: the run as a whole and every stage of it."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import stages, swarm
from client.views.span import Box

OTHERS, FRAME = 18, 2
"""Lines of the screen that are neither stages nor samples; lines of a frame."""


class SwarmPane(Pane):
    """The run, and the stages with all their replicas."""

    def compose(self) -> ComposeResult:
        """Place head and table."""
        yield Panel("Swarm", partial(swarm.swarm_head, self.record), id="swarm-head")
        yield Listing("Stages", partial(stages.stage_table, self.record), id="stage-table")
        yield Panel("What it writes", partial(swarm.samples, self.record), id="samples")
        yield Panel(view=lambda box: [stages.LEGEND], id="legend")

    def show(self) -> None:
        """Make room for what the model is for and for samples, where there are any."""
        head = swarm.swarm_head(self.record, Box(self.app.size.width - 4))
        self.query_one("#swarm-head").styles.height = len(head) + FRAME
        panel = self.query_one("#samples")
        lines = swarm.samples_height(self.record, self.app.size.height - OTHERS)
        panel.display = lines > 0
        panel.styles.height = lines + FRAME
        super().show()

"""Swarm: the run as a whole, every stage of it, and why ours are ours."""

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import matching, stages, swarm
from client.views.span import Box, Line, Row

FRAME = 2
"""Lines of a frame."""


class SwarmPane(Pane):
    """The run, the stages with all their replicas, and sentences about ours."""

    def compose(self) -> ComposeResult:
        """Place head and table."""
        yield Panel("Swarm", partial(swarm.swarm_head, self.record), id="swarm-head")
        yield Listing("Stages, and why yours", self._stages, id="stage-table")
        yield Panel("", lambda box: [stages.LEGEND], id="legend")

    def show(self) -> None:
        """Make room for what the model is for."""
        head = swarm.swarm_head(self.record, Box(self.app.size.width - 4))
        self.query_one("#swarm-head").styles.height = len(head) + FRAME
        super().show()

    def _stages(self, box: Box) -> tuple[Line, list[Row]]:
        head, rows = stages.stage_table(self.record, box)
        return head, [*rows, Row("why", ((), *matching.sentences(self.record, box)))]

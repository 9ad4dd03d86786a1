"""Dashboard: the run, this machine, the stages, the network, the peers, the events."""

from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from client.ui.panes.pane import Pane
from client.ui.widgets.panel import Panel
from client.views import dashboard, peers, stages
from client.views.record import Record
from client.views.span import Box, Line


def nearest(record: Record, box: Box) -> list[Line]:
    """Return as many peers as there is room for."""
    head, rows = peers.peer_table(record, box, "", box.height - 1)
    return [head, *(row.lines[0] for row in rows)]


class DashboardPane(Pane):
    """The overview."""

    def compose(self) -> ComposeResult:
        """Place the panels; the stylesheet decides which are visible at which size."""
        record = self.record
        stage_map = partial(stages.stage_map, record)
        with Horizontal(id="above"):
            with Vertical(id="left"):
                yield Panel("Loss", partial(dashboard.loss, record), id="loss")
                yield Panel("Stages", stage_map, id="stages-left")
            with Vertical(id="right"):
                yield Panel("This machine", partial(dashboard.machine, record), id="machine")
                yield Panel("Network", partial(dashboard.network, record), id="network")
                yield Panel("Peers", partial(nearest, record), id="near")
        yield Panel("Stages", stage_map, id="stages-below")
        yield Panel("Events", partial(dashboard.events, record), id="events")

    def show(self) -> None:
        """Give the stage map a line for its head and for each stage, within reason."""
        number = len(self.record.snapshot.stages) if self.record.snapshot else 0
        roomy = self.app.size.height >= 36
        lines = min(number + 1, 16 if roomy else 4) + 2
        for panel in ("#stages-left", "#stages-below"):
            self.query_one(panel).styles.height = lines
        self.query_one("#machine").styles.height = 12 if roomy else "1fr"
        super().show()

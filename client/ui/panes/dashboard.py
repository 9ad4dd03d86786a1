"""Dashboard: the run, this machine, the stages, the network, the peers, what happened."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from client.ui.model import dashboard, peers, stages
from client.ui.model.record import Record
from client.ui.model.span import Box, Line
from client.ui.panes.pane import Pane
from client.ui.widgets.panel import Panel


def nearest(record: Record, box: Box) -> list[Line]:
    """Return as many peers as there is room for."""
    head, rows = peers.peer_table(record, box, "state", "")
    return [head, *(row.lines[0] for row in rows[: box.height - 1])]


class DashboardPane(Pane):
    """All of it at a glance."""

    def compose(self) -> ComposeResult:
        """Place the panels; the stylesheet says which are seen at which size."""
        record = self.record
        with Horizontal(id="above"):
            yield Panel("Loss", partial(dashboard.loss, record), id="loss")
            with Vertical(id="beside"):
                yield Panel("This machine", partial(dashboard.machine, record), id="machine")
                yield Panel("Network", partial(dashboard.network, record), id="network")
        with Horizontal(id="between"):
            yield Panel("Stages", partial(stages.stage_map, record), id="stages")
            yield Panel("Peers", partial(nearest, record), id="near")
        yield Panel("Events", partial(dashboard.events, record), id="events")

    def show(self) -> None:
        """Give the stage map as many lines as it has stages, within reason."""
        number = len(self.record.snapshot.stages) if self.record.snapshot else 1
        wide = self.app.size.height >= 40
        wanted = min(max(number, 1), 16 if wide else 4) + 2
        self.query_one("#between").styles.height = max(wanted, 9) if wide else wanted
        super().show()

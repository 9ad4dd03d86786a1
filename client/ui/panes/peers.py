"""Peers: all known peers, and how far each is trusted."""

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Detail, Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import peers
from client.views.span import Box, Line, Row
from client.views.words import short


class PeersPane(Pane):
    """A table that can be filtered; a row opens the peer's details."""

    can_filter = True

    def compose(self) -> ComposeResult:
        """Place the table, below what there is to say of trust."""
        yield Panel("Trust", partial(peers.trust_summary, self.record), id="trust")
        yield Listing("Peers", self._view, id="peer-table")

    def show(self) -> None:
        """Update the title with the number of peers shown."""
        self.query_one(Listing).border_title = peers.peer_title(self.record, self.filter_text)
        panel = self.query_one("#trust")
        lines = peers.trust_summary(self.record, Box(max(1, self.size.width - 4)))
        panel.display = bool(lines)
        panel.styles.height = min(len(lines), self.size.height // 3) + 2
        super().show()

    def detail(self, key: str) -> Detail | None:
        """Return everything about a peer."""
        if key == "none":
            return None
        return f"Volunteer {short(key)}", partial(peers.details, self.record, key)

    def _view(self, box: Box) -> tuple[Line, list[Row]]:
        return peers.peer_table(self.record, box, self.filter_text)

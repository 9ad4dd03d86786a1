"""Peers: all known peers, and who contributed how much."""

from __future__ import annotations

from functools import partial

from textual.app import ComposeResult

from client.ui.panes.pane import Detail, Pane
from client.ui.widgets.listing import Listing
from client.ui.widgets.panel import Panel
from client.views import leaderboard, peers, trust
from client.views.span import Box, Line, Row
from client.views.words import short

ROOMY = 40
"""From this height on, both lists are shown."""


class PeersPane(Pane):
    """A table that can be filtered, and the leaderboard; a row opens the peer's details."""

    can_filter = True
    board = False
    """Whether the leaderboard is shown where there is no room for both."""

    def compose(self) -> ComposeResult:
        """Place the table, below what there is to say of trust."""
        yield Panel("Trust", partial(trust.summary, self.record), id="trust")
        yield Listing("Peers", self._view, id="peer-table")
        yield Listing(leaderboard.TITLE, self._board, id="leaderboard")

    def show(self) -> None:
        """Update the title with the number of peers shown."""
        title = peers.peer_title(self.record, self.filter_text)
        table, roomy = self.query_one("#peer-table", Listing), self.app.size.height >= ROOMY
        table.border_title = title
        table.display = roomy or not self.board
        self.query_one("#leaderboard").display = roomy or self.board
        panel = self.query_one("#trust")
        lines = trust.summary(self.record, Box(max(1, self.size.width - 4)))
        panel.display = bool(lines) and (roomy or not self.board)
        panel.styles.height = min(len(lines), self.size.height // 3) + 2
        super().show()

    @property
    def other_view(self) -> str:  # type: ignore[override]  # it depends on the room
        """What key v shows instead; empty: both lists are there."""
        if self.app.size.height >= ROOMY:
            return ""
        return "who is here" if self.board else "who contributed"

    def next_view(self) -> None:
        """Change between who is here and who contributed."""
        self.board = not self.board
        self.show()

    def take_focus(self) -> None:
        """Give the keys to the first list that is shown."""
        self.screen.set_focus(next(one for one in self.query(Listing) if one.display))

    def detail(self, key: str) -> Detail | None:
        """Return everything about a peer."""
        if key == "none":
            return None
        return f"Volunteer {short(key)}", partial(peers.details, self.record, key)

    def _board(self, box: Box) -> tuple[Line, list[Row]]:
        now = self.record.snapshot
        if now is None:
            return leaderboard.leaderboard((), "", box)
        return leaderboard.leaderboard(now.contributors, now.peer, box)

    def _view(self, box: Box) -> tuple[Line, list[Row]]:
        return peers.peer_table(self.record, box, self.filter_text)

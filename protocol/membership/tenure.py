"""Since when a peer has really been here, as far as we can know: its word against our memory.

Stewards are drawn from those who have been in the swarm for ten minutes, and the time of joining is
in the advert, so a newcomer could claim years. Members remember when they first saw a peer; whoever
was here before it came knows better than its word. ``joined_at`` is the later of the claim and our
first sight less a tolerance, once we had been here long enough to have seen it had it been there.

Views of members agree within the seconds a new advert takes to spread, which matters only around
the moment when a peer turns ten minutes old; then they are equal again. Who came *after* a liar has
only the liar's word, and differs from the others until the liar is ten minutes old: as it is itself
younger than that, it is no steward meanwhile, and who is one it learns from the postings.

State: one time per member, kept a while for those who are away; bounded. Unix seconds throughout.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.ids import PeerId

TOLERANCE_S: Final = 60.0
"""What gossip, clocks and a late link may take."""

AWAY_S: Final = 600.0
"""Who was away for longer is a newcomer when it returns."""

MAX_REMEMBERED: Final = 16_384


class Tenure:
    """First sights of members; we entered when we first saw anybody."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._began: float | None = None
        self._first: dict[PeerId, float] = {}
        self._last: dict[PeerId, float] = {}

    def saw(self, live: Collection[PeerId], wall: float) -> None:
        """Note who is live now."""
        if self._began is None and live:
            self._began = wall
        for peer in live:
            self._first.setdefault(peer, wall)
            self._last[peer] = wall
        if len(self._first) > len(live):
            self._forget(live, wall)

    def joined_at(self, peer: PeerId, claimed: float) -> float:
        """Return since when a peer is to be taken as a member."""
        first = self._first.get(peer)
        if peer == self._own or first is None or self._began is None:
            return claimed
        if first < self._began + TOLERANCE_S:
            return claimed  # it may have been here before us
        return max(claimed, first - TOLERANCE_S)

    def _forget(self, live: Collection[PeerId], wall: float) -> None:
        for peer in [peer for peer, last in self._last.items() if wall - last > AWAY_S]:
            del self._first[peer], self._last[peer]
        for peer in list(self._first)[: max(0, len(self._first) - MAX_REMEMBERED)]:
            if peer not in live:
                del self._first[peer], self._last[peer]

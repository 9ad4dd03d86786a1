"""Tenure: since when a peer has really been a member, by its claim and by our own memory.

Stewards are drawn from members of at least ten minutes. The advert states the time of joining, so a
newcomer could claim years. A member remembers when it first saw each peer, and trusts that over the
claim if it was here before the peer. ``joined_at`` is the later of the claim and our first sight
less a tolerance, once we have been here long enough to have seen an earlier arrival.

Members' views agree within the seconds that a new advert takes to spread. That matters only around
the moment when a peer turns ten minutes old; afterwards the views are equal again. A member that
arrived *after* a liar knows only the liar's claim, and differs from the others until the liar is
ten minutes old. It is younger still, so it is no steward until then, and learns the stewards from
the postings.

State: one time per member, kept for a while after it is gone; bounded. Unix seconds throughout.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.ids import PeerId

TOLERANCE_S: Final = 60.0
"""Allowance for gossip, clock skew and a late link."""

AWAY_S: Final = 600.0
"""A peer that was away for longer is a newcomer when it returns."""

MAX_REMEMBERED: Final = 16_384


class Tenure:
    """Times at which members were first seen; our own entry is the first sight of anybody."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._began: float | None = None
        self._first: dict[PeerId, float] = {}
        self._last: dict[PeerId, float] = {}

    def saw(self, live: Collection[PeerId], wall: float) -> None:
        """Note the live members at ``wall`` (Unix seconds)."""
        if self._began is None and live:
            self._began = wall
        for peer in live:
            self._first.setdefault(peer, wall)
            self._last[peer] = wall
        if len(self._first) > len(live):
            self._forget(live, wall)

    def joined_at(self, peer: PeerId, claimed: float) -> float:
        """Return since when a peer counts as a member; ``claimed`` is the time in its advert."""
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

"""Scores of misbehaviour, by peer: the cost of a broken rule, and the score that ends the link.

State: points and bans, each with the time they were written; both fade. The clock is passed in.
"""

import math
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.ids import PeerId

V = TypeVar("V")

BAN_POINTS = 100
BAN_S = 600.0
FADE_POINTS_PER_S = 0.2
"""Honest mistakes (10 points) are forgotten within a minute."""
MAX_PEERS = 4096
"""Scores kept; the oldest is forgotten."""


@dataclass
class PenaltyBox:
    """Points of each peer and the time until which it is banned."""

    _points: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    _banned_until: dict[PeerId, float] = field(default_factory=dict)

    def points(self, peer: PeerId, now: float) -> int:
        """Return the peer's score, faded to now."""
        points, written = self._points.get(peer, (0, now))
        return max(0, points - int(FADE_POINTS_PER_S * (now - written)))

    def add(self, peer: PeerId, points: int, now: float) -> bool:
        """Add points; return whether the peer is banned from now on."""
        total = self.points(peer, now) + points
        _put(self._points, peer, (total, now))
        if total < BAN_POINTS:
            return False
        _put(self._banned_until, peer, now + BAN_S)
        del self._points[peer]
        return True

    def is_banned(self, peer: PeerId, now: float) -> bool:
        """Return whether connections with this peer are refused now."""
        return now < self._banned_until.get(peer, now)

    def expel(self, peer: PeerId) -> None:
        """Refuse connections with a peer from now on, until it is the oldest of too many; its Hello
        is refused for ever."""
        _put(self._banned_until, peer, math.inf)


def _put(table: dict[PeerId, V], peer: PeerId, value: V) -> None:
    table.pop(peer, None)
    if len(table) >= MAX_PEERS:
        del table[next(iter(table))]
    table[peer] = value

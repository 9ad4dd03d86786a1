"""Who has broken so many rules that connections with it are refused for a while.

State: the points that each peer has left, and the bans; both are forgotten with time. The clock is
passed in.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from protocol.ids import PeerId
from protocol.token_bucket import Rate, TokenBuckets

BAN_POINTS = 100
BAN_S = 600.0
FADE_POINTS_PER_S = 0.2
"""Honest mistakes (10 points) are forgotten within a minute."""
MAX_PEERS = 4096
"""Scores, and bans, that are kept; the oldest is forgotten."""
_PATIENCE = Rate(FADE_POINTS_PER_S, BAN_POINTS - 1)


@dataclass
class PenaltyBox:
    """The points that each peer has left, and the time until which it is banned."""

    _left: TokenBuckets[PeerId] = field(default_factory=lambda: TokenBuckets(MAX_PEERS))
    _banned_until: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)

    def add(self, peer: PeerId, points: int, now: float) -> bool:
        """Count points; return whether the peer is banned from now on."""
        if self._left.take({peer: _PATIENCE}, now, points):
            return False
        self._ban(peer, now + BAN_S)
        return True

    def is_banned(self, peer: PeerId, now: float) -> bool:
        return now < self._banned_until.get(peer, now)

    def expel(self, peer: PeerId) -> None:
        """Refuse connections with a peer from now on, until it is the oldest of too many; its Hello
        is refused for ever."""
        self._ban(peer, math.inf)

    def _ban(self, peer: PeerId, until: float) -> None:
        self._banned_until[peer] = max(until, self._banned_until.get(peer, until))
        self._banned_until.move_to_end(peer)
        if len(self._banned_until) > MAX_PEERS:
            self._banned_until.popitem(last=False)

"""Next-hop choice: interleaved weighted round-robin over the live replicas of the next stage.

SWARM (arXiv 2301.11913, section 3.2): each replica carries the expected runtime of what was sent to
it; the next microbatch goes to the one with the least. Faster replicas accumulate more slowly, so
shares follow speed. Unlike the published code a timeout counts against the replica, and repeated
ones suspend it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from protocol.ids import PeerId, rank

EMA_ALPHA = 0.1
TIMEOUT_FACTOR = 2.0
"""A timeout doubles the expected time: the replica's share halves until it proves itself."""
SUSPEND_AFTER_STRIKES = 3
SUSPEND_S = 30.0


@dataclass(slots=True)
class _Candidate:
    load_s: float
    hop_s: float
    strikes: int = 0
    suspended_until: float = 0.0


class NextHop:
    """Chooses among the replicas of one stage; holds a clock-free account per replica."""

    def __init__(self, default_hop_s: float = 1.0) -> None:
        self._default_hop_s = default_hop_s
        self._candidates: dict[PeerId, _Candidate] = {}

    def update(self, peers: Iterable[PeerId]) -> None:
        """Make ``peers`` the live replicas; a newcomer starts at the current minimum load."""
        wanted = set(peers)
        for gone in self._candidates.keys() - wanted:
            del self._candidates[gone]
        floor = min((c.load_s for c in self._candidates.values()), default=0.0)
        known = [c.hop_s for c in self._candidates.values()]
        hop_s = sum(known) / len(known) if known else self._default_hop_s
        for peer in wanted - self._candidates.keys():
            self._candidates[peer] = _Candidate(load_s=floor, hop_s=hop_s)

    def choose(self, now: float, exclude: Collection[PeerId] = ()) -> PeerId | None:
        """Return the replica with the least accumulated runtime and charge it, or None."""
        open_to = [
            (c.load_s, rank(peer, round(c.load_s, 3)), peer)
            for peer, c in self._candidates.items()
            if peer not in exclude and c.suspended_until <= now
        ]
        if not open_to:
            return None
        peer = min(open_to)[2]
        candidate = self._candidates[peer]
        candidate.load_s += candidate.hop_s
        return peer

    def refund(self, peer: PeerId) -> None:
        """Take back a charge: the replica was busy and did not take the microbatch."""
        if candidate := self._candidates.get(peer):
            candidate.load_s -= candidate.hop_s

    def settle(self, peer: PeerId, seconds: float) -> None:
        """Learn how long a microbatch really took there (receipt to gradient)."""
        if candidate := self._candidates.get(peer):
            candidate.hop_s += EMA_ALPHA * (max(seconds, 1e-4) - candidate.hop_s)
            candidate.strikes = 0

    def timed_out(self, peer: PeerId, now: float) -> None:
        """Count a missed deadline against a replica."""
        if candidate := self._candidates.get(peer):
            candidate.hop_s *= TIMEOUT_FACTOR
            candidate.strikes += 1
            if candidate.strikes >= SUSPEND_AFTER_STRIKES:
                candidate.suspended_until = now + SUSPEND_S
                candidate.strikes = 0

    def expected_s(self, peer: PeerId) -> float:
        """Return the expected seconds from receipt to gradient at ``peer``."""
        candidate = self._candidates.get(peer)
        return candidate.hop_s if candidate else self._default_hop_s

    def __len__(self) -> int:
        return len(self._candidates)

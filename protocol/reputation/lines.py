"""How fast partners' lines really are: bytes per second of transfers, while they are under way.

A transfer is under way with a peer from the first byte asked for until nothing is outstanding. What
it reaches is at most what the slower of two lines can do, so it says something of the *peer's* line
only when ours had room: a stretch in which all our transfers together came near the most that we
ever reached is evidence of our own line alone. Small payloads say nothing (their time is latency)
and are the caller's to leave out.

State per direction: what is outstanding, one account per peer, and our own best.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId
from protocol.reputation.account import Account

MIN_PAYLOAD_BYTES: Final = 1024 * 1024
"""Smaller payloads are not worth timing."""

SLICE_S: Final = 1.0
SLICE_BYTES: Final = 8 * 1024 * 1024
"""A stretch is judged when it is this long, or this large, or over."""

SHORTEST_S: Final = 0.02
"""What is over sooner came out of buffers, not over a line."""

IDLE_S: Final = 10.0
"""A transfer in which nothing moves for so long is over (its peer may be gone)."""

OWN_SHARE: Final = 0.7
"""Of our own best: above it our own line may have been the slow one."""

OWN_AFTER_S: Final = 2.0
"""Seconds of transfers before our own best is told as the speed of our line."""

MAX_PEERS: Final = 256


@dataclass(slots=True)
class _Transfer:
    outstanding: int = 0
    since: float = 0.0
    """When the stretch began, monotonic seconds."""
    moved: float = 0.0
    """When something last happened."""
    bytes: int = 0
    rate: float = 0.0
    """Of the stretch before, while the transfer lasts."""


@dataclass(slots=True)
class LineMeter:
    """One direction: what comes to us measures uplinks of peers, what we send their downlinks."""

    accounts: dict[PeerId, Account] = field(default_factory=dict)
    own_best_bytes_per_s: float = 0.0
    own_s: float = 0.0
    """Seconds of transfers in all."""
    _transfers: dict[PeerId, _Transfer] = field(default_factory=dict)

    @property
    def own_bytes_per_s(self) -> float:
        """What our own line has reached, 0 until that is known."""
        return self.own_best_bytes_per_s if self.own_s >= OWN_AFTER_S else 0.0

    def outstanding(self, peer: PeerId) -> int:
        """Return how many pieces are under way with a peer."""
        transfer = self._transfers.get(peer)
        return transfer.outstanding if transfer else 0

    def begin(self, peer: PeerId, now: float) -> None:
        """One more piece is under way (asked for, or sent)."""
        transfer = self._transfers.get(peer)
        if transfer is None or now - transfer.moved > IDLE_S:
            if transfer is None and len(self._transfers) >= MAX_PEERS:
                return
            transfer = self._transfers[peer] = _Transfer(since=now)
        transfer.outstanding += 1
        transfer.moved = now

    def arrived(self, peer: PeerId, size_bytes: int, now: float) -> None:
        """A piece is through (it came, or its receipt did)."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            return
        transfer.outstanding -= 1
        transfer.bytes += size_bytes
        transfer.moved = now
        over = transfer.outstanding <= 0
        if over or now - transfer.since >= SLICE_S or transfer.bytes >= SLICE_BYTES:
            self._judge(peer, transfer, now)
        if over:
            del self._transfers[peer]

    def gone(self, peer: PeerId) -> None:
        """A peer is gone, and with it what was under way."""
        self._transfers.pop(peer, None)

    def _judge(self, peer: PeerId, transfer: _Transfer, now: float) -> None:
        taken_s, size_bytes = now - transfer.since, transfer.bytes
        transfer.since, transfer.bytes = now, 0
        if taken_s < SHORTEST_S:
            return
        transfer.rate = size_bytes / taken_s
        total = sum(t.rate for t in self._transfers.values() if now - t.moved <= IDLE_S)
        best = self.own_best_bytes_per_s
        self.own_best_bytes_per_s = max(best, total)
        self.own_s += taken_s
        if total >= OWN_SHARE * self.own_best_bytes_per_s:
            return
        account = self.accounts.get(peer)
        if account is None:
            if len(self.accounts) >= MAX_PEERS:
                return
            account = self.accounts[peer] = Account()
        account.add(size_bytes, taken_s, now)

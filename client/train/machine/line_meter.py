"""Measures one direction of our own line: the most bytes per second that it has carried.

A transfer with a peer lasts from the first byte requested until nothing is in flight. Its rate is
limited by the slower of two lines, so what all transfers reach together is what we know of ours.
The caller leaves out small payloads, whose time is mostly latency.

State: the transfers in flight, and the maximum.
"""

from dataclasses import dataclass, field
from typing import Final

from protocol.ids import PeerId

MIN_PAYLOAD_BYTES: Final = 1024 * 1024
"""Smaller payloads are not worth timing."""

SLICE_S: Final = 1.0
SLICE_BYTES: Final = 8 * 1024 * 1024
"""A stretch is evaluated when it is this long, this large, or complete."""

SHORTEST_S: Final = 0.02
"""A shorter stretch is ignored: its bytes came out of buffers, not over a line."""

IDLE_S: Final = 10.0
"""A transfer without progress for so long is over (its peer may be gone)."""

OWN_AFTER_S: Final = 2.0
"""Seconds of transfers before our maximum counts as our bandwidth."""

MAX_PEERS: Final = 256


@dataclass(slots=True)
class _Transfer:
    outstanding: int = 0
    since: float = 0.0
    """When the stretch began, monotonic seconds."""
    moved: float = 0.0
    """Monotonic seconds of the last progress."""
    bytes: int = 0
    rate: float = 0.0
    """Bytes per second of the previous stretch."""


@dataclass(slots=True)
class LineMeter:
    """See the module's docstring."""

    own_best_bytes_per_s: float = 0.0
    own_s: float = 0.0
    """Seconds of transfers in all."""
    _transfers: dict[PeerId, _Transfer] = field(default_factory=dict)

    @property
    def own_bytes_per_s(self) -> float:
        """The highest rate that our own line has reached, 0 until it is known."""
        return self.own_best_bytes_per_s if self.own_s >= OWN_AFTER_S else 0.0

    def outstanding(self, peer: PeerId) -> int:
        """Return the number of payloads in flight with a peer."""
        transfer = self._transfers.get(peer)
        return transfer.outstanding if transfer else 0

    def begin(self, peer: PeerId, now: float) -> None:
        """Note that one more payload is in flight (requested, or sent)."""
        transfer = self._transfers.get(peer)
        if transfer is None or now - transfer.moved > IDLE_S:
            if transfer is None and len(self._transfers) >= MAX_PEERS:
                return
            transfer = self._transfers[peer] = _Transfer(since=now)
        transfer.outstanding += 1
        transfer.moved = now

    def arrived(self, peer: PeerId, size_bytes: int, now: float) -> None:
        """Note at ``now``, monotonic seconds, that a payload is complete: it came, or its receipt
        did."""
        transfer = self._transfers.get(peer)
        if transfer is None:
            return
        transfer.outstanding -= 1
        transfer.bytes += size_bytes
        transfer.moved = now
        over = transfer.outstanding <= 0
        if over or now - transfer.since >= SLICE_S or transfer.bytes >= SLICE_BYTES:
            self._judge(transfer, now)
        if over:
            del self._transfers[peer]

    def gone(self, peer: PeerId) -> None:
        """Drop the transfer with a peer that is gone."""
        self._transfers.pop(peer, None)

    def _judge(self, transfer: _Transfer, now: float) -> None:
        taken_s, size_bytes = now - transfer.since, transfer.bytes
        transfer.since, transfer.bytes = now, 0
        if taken_s < SHORTEST_S:
            return
        transfer.rate = size_bytes / taken_s
        total = sum(t.rate for t in self._transfers.values() if now - t.moved <= IDLE_S)
        self.own_best_bytes_per_s = max(self.own_best_bytes_per_s, total)
        self.own_s += taken_s

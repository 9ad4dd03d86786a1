"""How much may wait to be sent, to one peer and to all: who reads less than it requests loses its
link."""

from collections.abc import Mapping
from typing import Final

from protocol.ids import PeerId
from protocol.wire.route import Lane

_MIB: Final = 1024 * 1024
MOST_BYTES: Final = {"control": 8 * _MIB, "bulk": 512 * _MIB, "background": 64 * _MIB}
"""For one peer: eight segments of the largest size (more where a run's stages are larger), and more
small messages than a reading peer leaves unread."""
MOST_BYTES_IN_ALL: Final = {"control": 32 * _MIB, "bulk": 1024 * _MIB, "background": 256 * _MIB}
"""For all; beyond it, the one for which most waits loses its link."""
SHARE: Final = 16
"""Nobody loses its link for less than this part of what may wait for all."""
ROUNDS: Final = 3
"""Gradients of a stage that may wait for one peer at least: what it sums, the sums, and those of
the step before. All of a round are queued at once."""


class Backlog:
    """The bounds of a run.

    Args:
        round_bytes: of a stage's gradient, as it is averaged.
    """

    def __init__(self, round_bytes: int = 0) -> None:
        least = ROUNDS * round_bytes
        self._most = MOST_BYTES | {"bulk": max(MOST_BYTES["bulk"], least)}
        self._most_in_all = MOST_BYTES_IN_ALL | {"bulk": max(MOST_BYTES_IN_ALL["bulk"], 2 * least)}

    def is_long(self, lane: Lane, size_bytes: int) -> bool:
        """Whether so much waits for one peer that somebody may have to go."""
        return size_bytes > self._most_in_all[lane] / SHARE

    def slow_reader(self, peer: PeerId, lane: Lane, waiting: Mapping[PeerId, int]) -> PeerId | None:
        """Return whose link is to end, if more waits than may.

        Args:
            peer: for whom something was queued now.
            lane: where.
            waiting: bytes that wait in this lane, by peer.
        """
        if waiting[peer] > self._most[lane]:
            return peer
        if sum(waiting.values()) > self._most_in_all[lane]:
            return max(waiting, key=lambda whose: waiting[whose])
        return None

"""How much may wait to be sent to all peers: beyond it, the one for which most waits loses its
link, for it reads less than it requests."""

from collections.abc import Mapping
from typing import Final

from protocol.ids import PeerId
from protocol.wire.route import Lane

_MIB: Final = 1024 * 1024
MOST_BYTES: Final = {"control": 32 * _MIB, "bulk": 1024 * _MIB, "background": 256 * _MIB}
"""Of tensors: sixteen segments of the largest size, and more where a run's stages are larger."""
SHARE: Final = 16
"""Nobody loses its link for less than this part of what may wait for all."""
ROUNDS: Final = 6
"""Gradients of a stage that may wait at least: what two peers sum, the sums, and those of the step
before. All of a round are queued at once."""


class Backlog:
    """The bounds of a run.

    Args:
        round_bytes: of a stage's gradient, as it is averaged.
    """

    def __init__(self, round_bytes: int = 0) -> None:
        self._most = MOST_BYTES | {"bulk": max(MOST_BYTES["bulk"], ROUNDS * round_bytes)}

    def is_long(self, lane: Lane, size_bytes: int) -> bool:
        """Whether so much waits for one peer that somebody may have to go."""
        return size_bytes > self._most[lane] / SHARE

    def slow_reader(self, lane: Lane, waiting: Mapping[PeerId, int]) -> PeerId | None:
        """Return whose link is to end, if more bytes wait in a lane than may; ``waiting`` has them
        by peer."""
        if sum(waiting.values()) <= self._most[lane]:
            return None
        return max(waiting, key=lambda whose: waiting[whose])

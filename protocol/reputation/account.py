"""An exponentially decaying average of measured work: an amount over seconds.

The caller chooses the unit of the amount (microbatches, bytes). What was measured as long ago as it
takes to know a peer counts half, so that a slowdown shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.matching.timing import MEASURED_S

MAX_MEASURED_S: Final = 3600.0
"""The most that a record says."""


@dataclass(slots=True)
class Account:
    """Add stretches of work with ``add``; read ``rate`` and ``measured_s``."""

    amount: float = 0.0
    weight_s: float = 0.0
    """Seconds behind ``amount``, decayed like it."""
    measured_s: float = 0.0
    """Seconds measured in all, not decayed, at most ``MAX_MEASURED_S``."""
    newest: float = 0.0
    """Monotonic seconds of the last stretch."""

    def add(self, amount: float, seconds: float, now: float) -> None:
        """Add ``amount`` of work, done in the ``seconds`` before ``now`` (monotonic seconds)."""
        aged = 0.5 ** (seconds / MEASURED_S)
        self.amount = self.amount * aged + amount
        self.weight_s = self.weight_s * aged + seconds
        self.measured_s = min(MAX_MEASURED_S, self.measured_s + seconds)
        self.newest = now

    @property
    def rate(self) -> float:
        """Amount per second, 0 before the first stretch."""
        return self.amount / self.weight_s if self.weight_s > 0 else 0.0

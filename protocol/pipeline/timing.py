"""How long something takes at a replica, and how long is late.

Smoothed mean and deviation after RFC 6298 (Jacobson; Karn: work that was sent more than once gives
no sample). A time also scales with the work that a replica has of us, beyond what it usually has.
"""

from dataclasses import dataclass
from typing import Final

ALPHA: Final = 1 / 8
BETA: Final = 1 / 4
DEVIATIONS: Final = 4
MIN_SAMPLES: Final = 3
"""Before so many samples nothing is judged by a timing: the first ones hold start-up costs."""
LEAST_S: Final = 1e-4
"""Nothing takes less, or its rate would be without bound."""
UNMEASURED_S: Final = 20.0
"""What is late while nothing is known: workers start, memory is touched for the first time."""


@dataclass(slots=True)
class Timing:
    """Mean and deviation of one kind of time, in seconds, at ``queue`` pieces of work."""

    mean_s: float = 0.0
    deviation_s: float = 0.0
    queue: float = 1.0
    samples: int = 0

    @property
    def measured(self) -> bool:
        """Whether there are enough measurements."""
        return self.samples >= MIN_SAMPLES

    def note(self, seconds: float, queue: int = 1) -> None:
        """Take a sample: how long it took while the replica had ``queue`` pieces of our work."""
        self.samples += 1
        if self.samples == 1:
            self.queue = max(1.0, queue)
        scaled = max(seconds, LEAST_S) / self._scale(queue)
        if self.samples == 1:
            self.mean_s, self.deviation_s = scaled, scaled / 2
            return
        self.deviation_s += BETA * (abs(scaled - self.mean_s) - self.deviation_s)
        self.mean_s += ALPHA * (scaled - self.mean_s)
        self.queue += ALPHA * (max(1, queue) - self.queue)

    def at_least(self, seconds: float, queue: int = 1) -> None:
        """It has taken so long and is not done: that much is certain, whatever was sent again."""
        if self.samples and seconds > self.expected_s(queue):
            self.note(seconds, queue)

    def expected_s(self, queue: int = 1) -> float:
        """Return how long it should take with so much work there."""
        return self.mean_s * self._scale(queue)

    def late_s(self, queue: int = 1) -> float:
        """Return after how long it is late, once it is measured: some deviations, and half the mean
        at least."""
        over = max(DEVIATIONS * self.deviation_s, self.mean_s / 2)
        return (self.mean_s + over) * self._scale(queue)

    def _scale(self, queue: int) -> float:
        return max(1.0, queue / self.queue)

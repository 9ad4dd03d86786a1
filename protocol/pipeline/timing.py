"""How long something takes at a replica, and how long is too long.

Smoothed mean and deviation after RFC 6298 (Jacobson; Karn: work that was sent more than once gives
no sample). A time also scales with the work that a replica has of us, beyond what it usually has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

ALPHA = 1 / 8
BETA = 1 / 4
DEVIATIONS = 4
MIN_SAMPLES = 3
"""Before so many samples nothing is judged by a timing: the first ones hold start-up costs."""
LEAST_S = 1e-4
MOST_TIMES = 3.0
"""A replica silent for this many times the usual, or ``Bounds.most_s``, is given up."""
ANSWER_S, MOST_ANSWER_S = 1.5, 4.5
"""How long an answer to "are you there?" may take; at most, where receipts take long as well."""


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

    def late_s(self, queue: int = 1, deviations: float = DEVIATIONS) -> float:
        """Return after how long it is late: some deviations, and half the mean at least."""
        over = max(deviations * self.deviation_s, self.mean_s / 2)
        return (self.mean_s + over) * self._scale(queue)

    def _scale(self, queue: int) -> float:
        return max(1.0, queue / self.queue)


def answer_s(receipt: Timing) -> float:
    """Return how long a replica may take to say that it is there: what it says waits behind other
    bytes on its line and on ours, as its receipts do."""
    return min(max(ANSWER_S, receipt.late_s()), MOST_ANSWER_S) if receipt.measured else ANSWER_S


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds to wait before a silent peer is asked whether it is there."""

    unmeasured_s: float
    """While nothing is known: workers start, memory is touched for the first time."""
    least_s: float
    most_s: float
    """From here on, or after ``MOST_TIMES`` the usual time, the peer is given up."""


RECEIPT = Bounds(unmeasured_s=10.0, least_s=1.5, most_s=3.0)
GRADIENT = Bounds(unmeasured_s=20.0, least_s=3.0, most_s=6.0)


def wait_s(own: Timing, siblings: Collection[Timing], bounds: Bounds, queue: int = 1) -> float:
    """Return the seconds after which to ask a replica; it has `answer_s` more to answer.

    An unmeasured replica is judged by its slowest measured sibling: others that have not shown what
    they need, perhaps because they never will, do not make us wait longer.

    Args:
        own: its times.
        siblings: its siblings' times.
        bounds: limits of the result.
        queue: microbatches before this one, itself included.
    """
    if own.measured:
        known, late_s = own, own.late_s(queue)
    elif shown := [sibling for sibling in siblings if sibling.measured]:
        known = max(shown, key=lambda sibling: sibling.expected_s(queue))
        late_s = MOST_TIMES * known.expected_s(queue)
    else:
        return bounds.unmeasured_s
    most_s = max(bounds.most_s, MOST_TIMES * known.expected_s(queue))
    return max(bounds.least_s, min(late_s, most_s - ANSWER_S))

"""The swarm's clock: the median of what members' clocks say, each in its Hello.

Members whose clocks are far apart refuse each other's records, and would train apart. So whoever is
about to train compares its clock with those of the members that it is linked with, and does not
begin if it is off by more than ``MAX_CLOCK_OFFSET_S``.

State: a reading for each linked peer, its distance from our monotonic clock. Pure; clocks are
passed in.
"""

from collections.abc import Callable
from statistics import median_high, median_low

from protocol.ids import PeerId
from protocol.limits import MAX_CLOCK_OFFSET_S


class SwarmClock:
    """See the module's docstring.

    Args:
        counts: whether a linked peer's clock counts.
    """

    def __init__(self, counts: Callable[[PeerId], bool]) -> None:
        self._counts = counts
        self._readings: dict[PeerId, float] = {}

    def heard(self, peer: PeerId, clock: float, now: float) -> None:
        """Take the reading of a peer's Hello, Unix seconds when it was sent; 0: it does not say. Of
        several on one link the least delayed counts. ``now`` is monotonic seconds."""
        if clock:
            reading = clock - now
            self._readings[peer] = max(self._readings.get(peer, reading), reading)

    def gone(self, peer: PeerId) -> None:
        """The link with a peer has ended."""
        self._readings.pop(peer, None)

    def ahead_s(self, peer: PeerId, own: float, now: float) -> float:
        """Return by how much our clock, ``own``, is ahead of a peer's; 0: it has not said."""
        return own - now - self._readings.get(peer, own - now)

    def compare(self, own: float, now: float) -> str:
        """Return why our clock does not let us begin to train, with the number; empty: it does."""
        readings = [r for peer, r in self._readings.items() if self._counts(peer)]
        if not readings:
            return ""
        middle = (median_low(readings), median_high(readings))
        ahead_s = min((own - now - reading for reading in middle), key=abs)
        if abs(ahead_s) <= MAX_CLOCK_OFFSET_S:
            return ""
        whose = f"those of {len(readings)} members (their median)"
        if len(readings) == 1:
            whose = "that of the only member it is linked with"
        return f"this machine's clock is {off_words(ahead_s)} {whose}"


def off_words(ahead_s: float) -> str:
    """Return how far a clock is off, to be followed by whose the other one is."""
    return f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"

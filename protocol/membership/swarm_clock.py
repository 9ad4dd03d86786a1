"""The swarm's clock: the median of what members' clocks say, each in its Hello.

Members whose clocks are far apart refuse each other's records, and would train apart. So whoever is
about to train compares its clock with those of the members that it is linked with. If it is off by
more than ``MAX_CLOCK_OFFSET_S``, it does not begin. If it is off by less, it goes by theirs, and
keeps to that as long as it runs, whatever is done to its own clock meanwhile.

State: a reading for each linked peer, and how far we are from them. Readings and our own offset are
distances from our monotonic clock. Pure; clocks are passed in.
"""

from collections.abc import Callable
from statistics import median_high, median_low

from protocol.ids import PeerId
from protocol.limits import MAX_CLOCK_OFFSET_S
from protocol.pace import HEARD_S


class SwarmClock:
    """See the module's docstring.

    Args:
        counts: whether a linked peer's clock counts.
    """

    def __init__(self, counts: Callable[[PeerId], bool]) -> None:
        self._counts = counts
        self._readings: dict[PeerId, float] = {}
        self._offset: float | None = None
        """Of the clock that we go by in place of our own."""
        self._settled = False

    def heard(self, peer: PeerId, clock: float, now: float) -> None:
        """Take the reading of a peer's Hello; of several on one link the least delayed counts.

        Args:
            peer: its sender.
            clock: Unix seconds when it was sent; 0: it does not say.
            now: monotonic seconds.
        """
        if clock:
            reading = clock - now
            self._readings[peer] = max(self._readings.get(peer, reading), reading)

    def gone(self, peer: PeerId) -> None:
        """The link with a peer has ended."""
        self._readings.pop(peer, None)

    def settle(self) -> None:
        """We begin to train: the clock that we go by stays the same."""
        self._settled = True

    def unix_s(self, own: float, now: float) -> float:
        """Return the time by which we judge records: ``own``, or in its place the members'."""
        return own if self._offset is None else now + self._offset

    def ahead_s(self, peer: PeerId, own: float, now: float) -> float:
        """Return by how much our time is ahead of a peer's; 0: it has not said."""
        reading = self._readings.get(peer)
        return 0.0 if reading is None else self.unix_s(own, now) - now - reading

    def compare(self, own: float, now: float) -> str:
        """Compare our clock with the members', and go by theirs if it is a little off.

        Returns:
            why we may not begin to train, with the number; empty: we may.
        """
        if self._settled:
            return ""
        readings = [r for peer, r in self._readings.items() if self._counts(peer)]
        if not readings:
            self._offset = None
            return ""
        middle = (median_low(readings), median_high(readings))
        nearest = min(middle, key=lambda reading: abs(own - now - reading))
        ahead_s = own - now - nearest
        # a smaller difference may be the time for which a message was on its way
        follows = HEARD_S < abs(ahead_s) <= MAX_CLOCK_OFFSET_S
        self._offset = nearest if follows else None
        if abs(ahead_s) <= MAX_CLOCK_OFFSET_S:
            return ""
        whose = f"those of {len(readings)} members (their median)"
        if len(readings) == 1:
            whose = "that of the only member it is linked with"
        return f"this machine's clock is {off_words(ahead_s)} {whose}"


def off_words(ahead_s: float) -> str:
    """Return how far a clock is off, to be followed by whose the other one is."""
    return f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"

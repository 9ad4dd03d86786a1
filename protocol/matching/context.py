"""The context of one peer's matching: itself, the population, the board and the wall clock.

``Matching`` owns it and replaces its parts; the volunteer and the stewards only read it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from protocol.ids import PeerId
from protocol.limits import MAX_CLOCK_SKEW_S
from protocol.matching.board import Board
from protocol.matching.last_members import LastMembers
from protocol.matching.population import Population


@dataclass(slots=True)
class Context:
    """The shared view. ``counters`` counts refusals by reason."""

    me: PeerId
    population: Population
    board: Board
    wall_offset_s: float
    """Unix time minus the monotonic clock."""
    counters: Counter[str] = field(default_factory=Counter)
    last_members: LastMembers = field(default_factory=LastMembers)
    """A majority of these must be visible before we decide anything for the whole swarm."""
    _last_number: int = 0

    @property
    def sees_majority(self) -> bool:
        """Whether we cannot be the smaller part of a partition."""
        return self.last_members.has_majority(self.population.members.keys())

    def wall_s(self, now: float) -> float:
        """Return Unix seconds at a monotonic moment."""
        return now + self.wall_offset_s

    def number(self, now: float) -> int:
        """Return Unix milliseconds, strictly ascending: the version and issue time of a message.

        They are derived from the wall clock, so that they also ascend over restarts.
        """
        self._last_number = max(self._last_number + 1, int(self.wall_s(now) * 1000), 1)
        return self._last_number

    def latest_number(self, now: float) -> int:
        """Return the highest number that others accept at ``now``, given the permitted skew."""
        return int((self.wall_s(now) + MAX_CLOCK_SKEW_S) * 1000)

    def take_back_numbers(self, now: float) -> bool:
        """Reset our numbers if the clock was set back so far that nobody would accept them.
        Return whether they were reset."""
        if self._last_number <= self.latest_number(now):
            return False
        self._last_number = 0
        return True

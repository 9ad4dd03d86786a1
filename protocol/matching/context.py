"""The context of one peer's matching: itself, the population, the board and the wall clock.

``Matching`` owns it and replaces its parts; the volunteer and the stewards only read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.ids import PeerId, Stage
from protocol.limits import MAX_CLOCK_SKEW_S
from protocol.matching.board import Board
from protocol.matching.population import Population


@dataclass(slots=True)
class Context:
    """The shared view."""

    me: PeerId
    population: Population
    board: Board
    wall_offset_s: float
    """Unix time minus the monotonic clock; the driver sets it anew."""
    unable: Mapping[Stage, str] = field(default_factory=dict)
    """The stages that this machine cannot serve, each with its reason in words."""
    _last_number: int = 0

    def wall_s(self, now: float) -> float:
        """Return Unix seconds at a monotonic moment."""
        return now + self.wall_offset_s

    def number(self, now: float) -> int:
        """Return Unix milliseconds, strictly ascending: the issue time of a letter or posting.

        They are derived from the wall clock, so that they also ascend over restarts. If it was set
        back so far that nobody would accept them, they begin anew.
        """
        present = max(1, int(self.wall_s(now) * 1000))
        refused = self._last_number > present + MAX_CLOCK_SKEW_S * 1000
        self._last_number = present if refused else max(self._last_number + 1, present)
        return self._last_number

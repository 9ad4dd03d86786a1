"""Two lines of one run meet: members that trained apart, each by itself.

One side of a split swarm at most closes a step (``rounds/quorum.py``), but members that left in
order, or whose process ended, are missed by nobody: each of two friends may go on alone, and later
both train. A *line* is a lineage with the members that follow it. Where two lines meet, one stands;
the members of the other fetch its state and give up their own steps (``lines.py``).

Which one stands follows from what each side sees (``lines.py``: it never counts itself lower than
the other side does, so one at most gives up): one that ``MANY`` or more members follow stands
before a smaller one, so that one liar resets no three; then the one with more steps, then the
founder's, then that of the lowest peer id. Members of two lines that were begun apart know nothing
of each other: there the founder's stands once it has a checkpoint.

State of ``Meetings``: since when each other line is seen, how far it was then, and how often its
state came too slowly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId
from protocol.recovery.stored import Lineage

MEET_S: Final = 20.0
"""A line is seen for so long before another one is given up for it: a roll-back takes less, and
whoever has not heard of it yet follows meanwhile."""
MANY: Final = 3
FETCH_S: Final = 600.0
"""So long the state of a line is fetched before others are tried. Each attempt at the same line may
take twice as long as the one before: a slow donor is not left out, and one whose bytes drip holds
up nobody for good."""
MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True)
class Line:
    """A lineage, and what we see of those that follow it."""

    lineage: Lineage
    members: frozenset[PeerId]
    """At least one."""
    steps: int
    """Its newest version."""

    def stands_before(self, other: Line, founder: PeerId | None) -> bool:
        """Whether this line stands and the other one is given up; ``founder``: of the run."""
        ours, theirs = self._weight(founder), other._weight(founder)
        return ours > theirs or (ours == theirs and min(self.members) < min(other.members))

    def _weight(self, founder: PeerId | None) -> tuple[int, int, bool]:
        count = len(self.members)
        return count if count >= MANY else 0, self.steps, founder in self.members


def first(lines: Collection[Line], founder: PeerId | None) -> Line | None:
    """Return the one of these lines that stands before all others; None: there is none."""

    def stands(line: Line) -> bool:
        return all(line.stands_before(one, founder) for one in lines if one != line)

    return next(filter(stands, lines), None)


class Meetings:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.seen: tuple[Line, ...] = ()
        """All other lines that members serve now."""
        self._first: dict[Lineage, tuple[float, int]] = {}
        self._slow: dict[Lineage, int] = {}

    def see(self, lines: Iterable[Line], now: float) -> None:
        """Take all other lines that members serve now."""
        self.seen = tuple(lines)
        new = {line.lineage: (now, line.steps) for line in self.seen}
        self._first = {lineage: self._first.get(lineage, first) for lineage, first in new.items()}
        self._slow = {lineage: count for lineage, count in self._slow.items() if lineage in new}

    def fetch_s(self, lineage: Lineage) -> float:
        """Return how long the next attempt to fetch a line's state may take."""
        return FETCH_S * 2.0 ** min(self._slow.get(lineage, 0), MOST_DOUBLINGS)

    def too_slow(self, lineage: Lineage) -> None:
        """A line's state was not fetched in that time."""
        self._slow[lineage] = self._slow.get(lineage, 0) + 1

    def trains(self, line: Line, steps: int, now: float) -> bool:
        """Whether a line has been there for long and has gone on meanwhile, or is at the run's last
        of ``steps``."""
        since, version = self._first.get(line.lineage, (now, line.steps))
        return now >= since + MEET_S and (line.steps > version or line.steps >= steps)

    def next_deadline(self, now: float) -> float | None:
        """Return when a line will have been there for long."""
        due = (since + MEET_S for since, _ in self._first.values())
        return min((at for at in due if at > now), default=None)

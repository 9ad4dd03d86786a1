"""A loss curve in bounded memory: the node's of the run, and that which a front end has seen.

In a long run every n-th step is kept; n is a power of two and doubles when there are too many
points. When the swarm is rolled back to an earlier version, the steps after it are removed.
"""

import math
from collections.abc import Sequence
from typing import Final

from client.control.updates import StepPoint

MOST_POINTS: Final = 2048


class LossCurve:
    """See the module's docstring.

    Args:
        known: the points that it begins with, by step.
        most: points kept, besides the newest.
    """

    def __init__(self, known: Sequence[StepPoint] = (), most: int = MOST_POINTS) -> None:
        self._most, self._every = most, 1
        self._points: list[StepPoint] = []
        """Those that are kept, and the newest behind them, which may go with the next one."""
        self.learn(known)

    def learn(self, earlier: Sequence[StepPoint]) -> None:
        """Add points of which others that are known already are the newer ones."""
        known = {point.step: point for point in (*earlier, *self._points)}
        self._every, self._points = 1, []
        for _, point in sorted(known.items()):
            if math.isfinite(point.loss):
                self.note(point)

    def note(self, point: StepPoint) -> None:
        """Add a committed step; a repeated step removes itself and all later ones first."""
        self.rolled_back(point.step)
        if self._points and not self._is_kept(self._points[-1]):
            self._points.pop()
        self._points.append(point)
        while (point.step - self._points[0].step) // self._every >= self._most:
            self._every *= 2
            self._points = [one for one in self._points if one is point or self._is_kept(one)]

    def rolled_back(self, version: int) -> None:
        """Remove the steps from ``version`` on: the swarm was rolled back to it."""
        while self._points and self._points[-1].step >= version:
            self._points.pop()

    def points(self, most: int = MOST_POINTS + 1) -> list[StepPoint]:
        """Return at most so many points, oldest first; the newest step is always among them."""
        return [*_thinned(self._points[:-1], most - 1), *self._points[-1:]]

    def _is_kept(self, point: StepPoint) -> bool:
        return point is self._points[0] or point.step % self._every == 0


def _thinned(points: Sequence[StepPoint], most: int) -> Sequence[StepPoint]:
    if len(points) <= most:
        return points
    return [points[len(points) * i // most] for i in range(most)]

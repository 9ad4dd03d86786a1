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
        self._most = most
        self._points: list[StepPoint] = []
        self._newest: StepPoint | None = None
        self.learn(known)

    def learn(self, earlier: Sequence[StepPoint]) -> None:
        """Add points of which others that are known already are the newer ones."""
        known = {point.step: point for point in (*earlier, *self.points())}
        self._every, self._points, self._newest = 1, [], None
        for _, point in sorted(known.items()):
            if math.isfinite(point.loss):
                self._add(point)

    def note(self, point: StepPoint) -> None:
        """Add a committed step; a repeated step removes itself and all later ones first."""
        self.rolled_back(point.step)
        self._add(point)

    def rolled_back(self, version: int) -> None:
        """Remove the steps from ``version`` on: the swarm was rolled back to it."""
        if self._newest is not None and self._newest.step >= version:
            self._points = [point for point in self._points if point.step < version]
            self._newest = self._points[-1] if self._points else None

    def points(self, most: int = MOST_POINTS + 1) -> list[StepPoint]:
        """Return at most so many points, oldest first; the newest step is always among them."""
        if self._newest is None:
            return []
        body = _thinned(self._points, max(0, most - 1))
        return body if body and body[-1] is self._newest else [*body, self._newest]

    def _add(self, point: StepPoint) -> None:
        self._newest = point
        first = self._points[0].step if self._points else point.step
        while (point.step - first) // self._every >= self._most:
            self._every *= 2
            self._points = [p for p in self._points if p.step % self._every == 0 or p.step == first]
        if not self._points or point.step % self._every == 0:
            self._points.append(point)


def _thinned(points: Sequence[StepPoint], most: int) -> list[StepPoint]:
    if len(points) <= most:
        return list(points)
    return [points[len(points) * i // most] for i in range(most)]

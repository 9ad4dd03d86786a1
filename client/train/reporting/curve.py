"""The loss curve of the run as this volunteer has seen it, kept over restarts, in bounded memory.

In a long run every n-th step is kept; n is a power of two and doubles when there are too many
points. When the swarm is rolled back to an earlier version, the steps after it are removed.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from client.control.updates import StepPoint
from client.store.persisted import Persisted

MOST_POINTS = 2048


class Curve:
    """See the module's docstring.

    Args:
        most: points kept, besides the newest.
        path: file that keeps them over restarts; None: memory only.
    """

    def __init__(self, most: int = MOST_POINTS, path: Path | None = None) -> None:
        self._most = most
        self._file = Persisted(path, list[StepPoint])
        self._every = 1
        self._points: list[StepPoint] = []
        self._newest: StepPoint | None = None
        for point in self._file.peek() or ():
            if math.isfinite(point.loss):
                self._add(point)

    def note(self, step: int, wall: float, loss: float, tokens_per_s: float) -> None:
        """Add a committed step; a repeated step removes itself and all later ones first.

        Args:
            wall: Unix seconds of the commit.
            loss: mean token loss, nats.
            tokens_per_s: speed at that time.
        """
        self.rolled_back(step)
        self._add(StepPoint(step, wall, loss, tokens_per_s))

    def rolled_back(self, version: int) -> None:
        """Remove the steps from ``version`` on: the swarm was rolled back to it."""
        if self._newest is not None and self._newest.step >= version:
            self._points = [point for point in self._points if point.step < version]
            self._newest = self._points[-1] if self._points else None

    def points(self, most: int) -> list[StepPoint]:
        """Return at most so many points, oldest first; the newest step is always among them."""
        if self._newest is None:
            return []
        body = _thinned(self._points, max(0, most - 1))
        return body if body and body[-1] is self._newest else [*body, self._newest]

    def save(self) -> None:
        """Write the file, as far as the disk allows it."""
        if self._newest is not None:
            self._file.keep(self.points(self._most + 1))

    def _add(self, point: StepPoint) -> None:
        if self._newest is not None and point.step <= self._newest.step:
            return
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

"""The loss curve of the run as this volunteer has seen it, kept over restarts, in bounded memory.

In a long run every n-th step is kept; n is a power of two and doubles when there are too many
points. When the swarm is rolled back to an earlier version, the steps after it are removed. A curve
that cannot be written continues in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from client.control.updates import StepPoint
from client.store.curve import CurveFile, Sample

MOST_POINTS = 2048


class Curve:
    """See the module's docstring.

    Args:
        most: points kept, besides the newest.
        file: keeps them over restarts; None: memory only.
    """

    def __init__(self, most: int = MOST_POINTS, file: CurveFile | None = None) -> None:
        self._most, self._file = most, file
        self._every = 1
        self._points: list[StepPoint] = []
        self._newest: StepPoint | None = None
        for sample in file.load() if file else ():
            self._add(StepPoint(*sample))
        self._write()

    def note(self, step: int, wall: float, loss: float, tokens_per_s: float) -> None:
        """Add a committed step; a repeated step removes itself and all later ones first.

        Args:
            step: number of the step.
            wall: Unix seconds of the commit.
            loss: mean token loss, nats.
            tokens_per_s: speed at that time.
        """
        again = self._newest is not None and step <= self._newest.step
        if again:
            self._cut(step)
        before = self._every
        kept = self._add(StepPoint(step, wall, loss, tokens_per_s))
        if again or self._every != before:
            self._write()
        elif kept and self._file is not None:
            with suppress(OSError):
                self._file.append(_sample(self._points[-1]))

    def rolled_back(self, version: int) -> None:
        """Remove the steps from ``version`` on: the swarm was rolled back to it."""
        if self._newest is not None and self._newest.step >= version:
            self._cut(version)
            self._write()

    def points(self, most: int) -> list[StepPoint]:
        """Return at most so many points, oldest first; the newest step is always among them."""
        if self._newest is None:
            return []
        body = _thinned(self._points, max(0, most - 1))
        return body if body and body[-1] is self._newest else [*body, self._newest]

    def _add(self, point: StepPoint) -> bool:
        """Take a step; return whether it stays when a later one comes."""
        if self._newest is not None and point.step <= self._newest.step:
            return False
        self._newest = point
        first = self._points[0].step if self._points else point.step
        while (point.step - first) // self._every >= self._most:
            self._every *= 2
            self._points = [p for p in self._points if p.step % self._every == 0 or p.step == first]
        if self._points and point.step % self._every:
            return False
        self._points.append(point)
        return True

    def _cut(self, step: int) -> None:
        self._points = [point for point in self._points if point.step < step]
        self._newest = self._points[-1] if self._points else None

    def _write(self) -> None:
        if self._file is not None and self._points:
            with suppress(OSError):
                self._file.replace([_sample(point) for point in self._points])


def _sample(point: StepPoint) -> Sample:
    return Sample(point.step, point.time, point.loss, point.tokens_per_s)


def _thinned(points: Sequence[StepPoint], most: int) -> list[StepPoint]:
    if len(points) <= most:
        return list(points)
    return [points[len(points) * i // most] for i in range(most)]

"""The loss curve since the node started, in bounded memory: older points are thinned evenly."""

from __future__ import annotations

from collections.abc import Sequence

from client.control.updates import StepPoint

MOST_POINTS = 2048


class Curve:
    """Keeps every n-th step; n doubles whenever there are too many."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._every = 1
        self._seen = 0
        self._points: list[StepPoint] = []
        self._newest: StepPoint | None = None

    def note(self, step: int, wall: float, loss: float, tokens_per_s: float) -> None:
        """Add a step that was committed at ``wall`` (Unix seconds)."""
        self._newest = StepPoint(step, wall, loss, tokens_per_s)
        if self._seen % self._every == 0:
            self._points.append(self._newest)
        self._seen += 1
        if len(self._points) > self._most:
            self._points = self._points[::2]
            self._every *= 2

    def points(self, most: int) -> list[StepPoint]:
        """Return at most so many points, oldest first; the newest step is always among them."""
        if self._newest is None:
            return []
        body = _thinned(self._points, max(0, most - 1))
        return body if body and body[-1] is self._newest else [*body, self._newest]


def _thinned(points: Sequence[StepPoint], most: int) -> list[StepPoint]:
    if len(points) <= most:
        return list(points)
    return [points[len(points) * i // most] for i in range(most)]

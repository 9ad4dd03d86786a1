"""Tokens per second over the last steps, from the times at which they were heard of."""

from __future__ import annotations

from collections import deque

WINDOW = 12


class Pace:
    """A short history of (monotonic seconds, tokens so far)."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def note(self, now: float, tokens: int) -> None:
        """Add a mark; tokens never fall."""
        self._marks.append((now, tokens))

    def per_s(self) -> float:
        """Return the mean rate over the window, 0 before the second mark."""
        if len(self._marks) < 2:
            return 0.0
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        return (after - before) / (end - start) if end > start else 0.0

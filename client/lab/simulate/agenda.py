"""Virtual time: the queue of events, and the order in which messages arrive.

State: the future events, the clock, the seeded source of every random choice. The events are opaque
here.
"""

import heapq
import random
from collections.abc import Callable, Hashable

Action = Callable[[], object]
"""An event; its result is ignored."""
Range = tuple[float, float]
"""Bounds of a uniformly random duration in seconds."""


class Agenda:
    """A seeded queue of events; equal times happen in the order in which they were scheduled."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        """Virtual seconds."""
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Action]] = []
        self._scheduled = 0
        self._lane_free_at: dict[Hashable, float] = {}

    def at(self, at: float, action: Action) -> None:
        """Schedule an action for a time not before ``now``."""
        self._scheduled += 1
        heapq.heappush(self._events, (at, self._scheduled, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Schedule an action."""
        self.at(self.now + delay_s, action)

    def sometime(self, within_s: Range, action: Action) -> None:
        """Schedule an action after a random delay."""
        self.after(self.random.uniform(*within_s), action)

    def every(self, period_s: float, action: Action) -> None:
        """Run an action now and then periodically, without end."""

        def again() -> None:
            action()
            self.after(period_s, again)

        again()

    def deliver(self, lane: Hashable, within_s: Range, action: Action) -> None:
        """Schedule an action after a random delay, but never before the lane's previous one: as
        bytes of one TCP stream."""
        arrives = self.now + self.random.uniform(*within_s)
        arrives = max(arrives, self._lane_free_at.get(lane, 0.0))
        self._lane_free_at[lane] = arrives
        self.at(arrives, action)

    def advance(self, limit_s: float) -> bool:
        """Run the next event; False if there is none before ``limit_s``."""
        if not self._events or self._events[0][0] > limit_s:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True

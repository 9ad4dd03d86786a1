"""When the node looks at its machines again: at the next deadline, or when something changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

TICK_MIN_S = 0.01
TICK_MAX_S = 0.5


class Alarm:
    """Sleeps until the next deadline, in bounds, and then ticks.

    Args:
        deadlines: monotonic seconds; None of a machine that waits for nothing.
        tick: looks at all machines.
    """

    def __init__(
        self, deadlines: Callable[[], Iterable[float | None]], tick: Callable[[], None]
    ) -> None:
        self._deadlines, self._tick = deadlines, tick
        self._wake = trio.Event()

    def wake(self) -> None:
        """Deadlines may have changed: tick at once."""
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            now = trio.current_time()
            due = min((d for d in self._deadlines() if d is not None), default=now + TICK_MAX_S)
            self._wake = trio.Event()
            with trio.move_on_after(min(max(due - now, TICK_MIN_S), TICK_MAX_S)):
                await self._wake.wait()
            self._tick()

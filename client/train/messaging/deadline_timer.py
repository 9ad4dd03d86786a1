"""Runs the machines' ticks: at the next deadline, or when something has changed."""

from collections.abc import Callable, Iterable

import trio

TICK_MIN_S = 0.01
TICK_MAX_S = 0.5
REST_SHARE = 4.0
"""The rest after a tick, in durations of that tick (``TICK_MIN_S`` at most): all changes in it
share the next tick. So ticks take at most a fifth of the time, however many messages come."""


class DeadlineTimer:
    """Sleeps until the next deadline (monotonic seconds), within bounds, and then ticks."""

    def __init__(
        self, deadlines: Callable[[], Iterable[float | None]], tick: Callable[[], None]
    ) -> None:
        self._deadlines, self._tick = deadlines, tick
        self._wake = trio.Event()

    def wake(self) -> None:
        """Deadlines may have changed: tick soon."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            now = trio.current_time()
            due = min((d for d in self._deadlines() if d is not None), default=now + TICK_MAX_S)
            with trio.move_on_after(min(max(due - now, TICK_MIN_S), TICK_MAX_S)):
                await self._wake.wait()
            began = trio.current_time()
            self._tick()
            self._wake = trio.Event()  # changes made by the tick itself need no second tick
            took_s = trio.current_time() - began
            await trio.sleep(min(REST_SHARE * took_s, TICK_MIN_S))

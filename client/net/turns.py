"""Schedules writes on a connection: urgent data goes first.

State: whether a task is writing, and two queues of waiting tasks. Each queue is FIFO, and the
normal one is served only while the urgent one is empty. So a small message waits only for the slice
being written, however many tensors are queued.
"""

from __future__ import annotations

import trio


class Turns:
    """A lock with two rows of waiting tasks."""

    def __init__(self) -> None:
        self._taken = False
        self._urgent = trio.lowlevel.ParkingLot()
        self._usual = trio.lowlevel.ParkingLot()

    async def wait(self, urgent: bool) -> None:
        """Wait for a turn, which lasts until ``end``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._taken:
            await (self._urgent if urgent else self._usual).park()  # it is handed to us
        self._taken = True

    def end(self) -> None:
        """Hand the turn to whoever waits."""
        if not (self._urgent.unpark() or self._usual.unpark()):
            self._taken = False

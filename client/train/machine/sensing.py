"""Asks the GPUs' driver for power and temperature every few seconds.

In a thread: a driver whose card has fallen off the bus may never answer. State: the newest
readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from client.limits.sensors import Reading, read_sensors

EVERY_S: Final = 5.0


class Sensing:
    """``devices`` are torch's names; ``read`` asks the driver."""

    def __init__(
        self,
        devices: Sequence[str],
        read: Callable[[Sequence[str]], list[Reading]] = read_sensors,
    ) -> None:
        self._devices, self._read = devices, read
        self.readings: list[Reading] = []

    async def run(self) -> None:
        """Ask until cancelled; return where there is nothing to be asked."""
        while True:
            self.readings = await trio.to_thread.run_sync(
                self._read,
                self._devices,
                abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
            )
            if not self.readings:
                return
            await trio.sleep(EVERY_S)

"""What runs beside a node in its process for those who supervise it.

Tells systemd that it is ready, alive and stopping, and serves the metrics. Everything comes from
the node's own snapshot and runs in its loop: a loop that hangs falls silent.
"""

from __future__ import annotations

import trio

from client.cli.serving.systemd import Notifier
from client.cli.terminal.status_text import progress_line
from client.control.methods import Provider
from client.control.snapshot import Snapshot

STATUS_S = 10.0
EXTENSION_S = 60.0
"""Leaving takes as long as it takes, each part of it bounded; systemd is told to wait on."""


class Supervised:
    """The node of this process, as soon as it is up."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._provider: Provider | None = None
        self.up = trio.Event()

    def set_up(self, provider: Provider) -> None:
        """The node answers on its control socket."""
        self._provider = provider
        self._notifier.ready()
        self.up.set()

    def snapshot(self) -> Snapshot:
        """Return how the node is; raises ``RuntimeError`` before it is up."""
        if self._provider is None:
            raise RuntimeError("the node is not up yet")
        return self._provider.snapshot()

    async def keep_informed(self, stop: trio.Event) -> None:
        """Tell systemd how the node is, until cancelled."""
        if not self._notifier.active:
            return
        await _either(self.up, stop)
        beat_s = min(STATUS_S, self._notifier.watchdog_s / 2 or STATUS_S)
        said_stopping = False
        while True:
            self._notifier.alive()
            if stop.is_set():
                if not said_stopping:
                    self._notifier.stopping()
                said_stopping = True
                self._notifier.extend(EXTENSION_S)
            if self._provider is not None:
                self._notifier.status(progress_line(self._provider.snapshot()))
            with trio.move_on_after(beat_s):
                await (trio.sleep_forever() if said_stopping else stop.wait())


async def _either(first: trio.Event, second: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)

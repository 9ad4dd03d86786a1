"""Reports the service's state to systemd: readiness, activity, stopping, and its watchdog.

The protocol of sd_notify(3): datagrams to the socket that ``NOTIFY_SOCKET`` names. Without one, and
when nobody reads, nothing happens. Messages sent from the node's own loop prove that the loop runs.
"""

import os
import socket
from collections.abc import MutableMapping

import trio

from client.control.methods import ControlApi
from client.control.snapshot import Snapshot
from client.views.status import one_line as progress_line

STATUS_S = 10.0
EXTENSION_US = 60_000_000
"""Extension of systemd's timeout while the node leaves; each part of leaving is bounded by
itself."""


class Notifier:
    """Speaks to the service manager; takes its variables out of ``environ``.

    So the node's children, whose messages systemd would reject, do not find them.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        for_us = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.address = f"\0{address[1:]}" if address.startswith("@") else address
        """Of the service manager; empty: there is none."""
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and for_us and address else 0.0
        """systemd kills us after so long a silence; 0: it does not."""

    def send(self, message: str) -> None:
        """Send a message of sd_notify(3); nobody need read it."""
        if not self.address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto(message.encode(), self.address)
        except OSError:
            return  # training does not depend on its supervisor


class Supervised:
    """The node of this process, once it is up, for its supervisors.

    Everything comes from the node's own snapshot and runs in its loop: a loop that hangs falls
    silent.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._node: ControlApi | None = None
        self.up = trio.Event()

    def set_up(self, node: ControlApi) -> None:
        """The node answers on its control socket."""
        self._node = node
        self._notifier.send("READY=1")
        self.up.set()

    def snapshot(self) -> Snapshot:
        """Return the node's status; raises ``RuntimeError`` before it is up."""
        if self._node is None:
            raise RuntimeError("the node is not up yet")
        return self._node.status()

    async def keep_informed(self, stop: trio.Event) -> None:
        """Report the node's state to systemd until cancelled."""
        if not self._notifier.address:
            return
        await _either(self.up, stop)
        beat_s = min(STATUS_S, self._notifier.watchdog_s / 2 or STATUS_S)
        said_stopping = False
        while True:
            self._notifier.send("WATCHDOG=1")
            if stop.is_set():
                if not said_stopping:
                    self._notifier.send("STOPPING=1")
                said_stopping = True
                self._notifier.send(f"EXTEND_TIMEOUT_USEC={EXTENSION_US}")
            if self._node is not None:
                self._notifier.send(f"STATUS={progress_line(self._node.status())}")
            with trio.move_on_after(beat_s):
                await (trio.sleep_forever() if said_stopping else stop.wait())


async def _either(first: trio.Event, second: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)

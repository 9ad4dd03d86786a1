"""Reports the service's state to systemd: readiness, activity, stopping, and its watchdog.

The protocol of sd_notify(3): datagrams to the socket that ``NOTIFY_SOCKET`` names. Without one, and
when nobody reads, nothing happens. Messages sent from the node's own loop prove that the loop runs.
"""

import os
import socket
from collections.abc import MutableMapping

import trio

from client.cli.terminal.output import printable
from client.control.methods import ControlApi
from client.control.snapshot import Snapshot
from client.views.status import one_line as progress_line

STATUS_S = 10.0
EXTENSION_S = 60.0
"""Extension of systemd's timeout while the node leaves; each part of leaving is bounded by
itself."""
MAX_STATUS_CHARS = 200


class Notifier:
    """Speaks to the service manager; takes its variables out of ``environ``.

    So the node's children, whose messages systemd would reject, do not find them.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        for_us = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and for_us and address else 0.0
        """systemd kills us after so long a silence; 0: it does not."""

    @property
    def active(self) -> bool:
        """Whether a service manager listens."""
        return bool(self._address)

    def ready(self) -> None:
        """The service is up."""
        self._send("READY=1")

    def status(self, words: str) -> None:
        """Report the service's activity in one line."""
        line = printable(" ".join(words.split()))[:MAX_STATUS_CHARS]
        self._send(f"STATUS={line}")

    def alive(self) -> None:
        """The loop runs (watchdog)."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service is stopping."""
        self._send("STOPPING=1")

    def extend(self, seconds: float) -> None:
        """Ask for more time to start or stop, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto(message.encode(), self._address)
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
        self._notifier.ready()
        self.up.set()

    def snapshot(self) -> Snapshot:
        """Return the node's status; raises ``RuntimeError`` before it is up."""
        if self._node is None:
            raise RuntimeError("the node is not up yet")
        return self._node.status()

    async def keep_informed(self, stop: trio.Event) -> None:
        """Report the node's state to systemd until cancelled."""
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
            if self._node is not None:
                self._notifier.status(progress_line(self._node.status()))
            with trio.move_on_after(beat_s):
                await (trio.sleep_forever() if said_stopping else stop.wait())


async def _either(first: trio.Event, second: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)

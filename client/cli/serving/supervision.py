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
LOOK_S = 0.2
"""Until the node is up."""
EXTENSION_US = 60_000_000
"""Extension of systemd's timeout while the node leaves; each part of leaving is bounded by
itself."""


class Supervised:
    """The node of this process, once it is up, for its supervisors; takes the service manager's
    variables out of ``environ``, so that the node's children, whose messages systemd would reject,
    do not find them.

    Everything comes from the node's own snapshot and runs in its loop: a loop that hangs falls
    silent.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        for_us = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = int(usec) / 1e6 if usec.isdigit() and for_us and address else 0.0
        """systemd kills us after so long a silence; 0: it does not."""
        self._node: ControlApi | None = None
        self.up = trio.Event()

    def set_up(self, node: ControlApi) -> None:
        """The node answers on its control socket."""
        self._node = node
        self._send("READY=1")
        self.up.set()

    def snapshot(self) -> Snapshot:
        """Return the node's status; raises ``RuntimeError`` before it is up."""
        if self._node is None:
            raise RuntimeError("the node is not up yet")
        return self._node.status()

    async def keep_informed(self, stop: trio.Event) -> None:
        """Report the node's state to systemd until cancelled."""
        if not self._address:
            return
        while not (self.up.is_set() or stop.is_set()):
            await trio.sleep(LOOK_S)
        beat_s = min(STATUS_S, self.watchdog_s / 2 or STATUS_S)
        said_stopping = False
        while True:
            self._send("WATCHDOG=1")
            if stop.is_set():
                if not said_stopping:
                    self._send("STOPPING=1")
                said_stopping = True
                self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_US}")
            if self._node is not None:
                self._send(f"STATUS={progress_line(self._node.status())}")
            with trio.move_on_after(beat_s):
                await (trio.sleep_forever() if said_stopping else stop.wait())

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto(message.encode(), self._address)
        except OSError:
            return  # training does not depend on its supervisor

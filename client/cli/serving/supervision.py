"""Tells systemd how the service is: ready, what it does, stopping, and that it still runs.

The protocol of sd_notify(3): datagrams to the socket that ``NOTIFY_SOCKET`` names. Without one, and
when nobody reads, nothing happens. Whoever sends from the node's own loop proves that it turns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from client.cli.terminal.output import printable

MAX_STATUS_CHARS = 200


class Notifier:
    """Speaks to the service manager; takes its variables out of ``environ``.

    So the node's children, whom systemd would not believe, do not find them.
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
        """Say in one line what the service does."""
        line = printable(" ".join(words.split()))[:MAX_STATUS_CHARS]
        self._send(f"STATUS={line}")

    def alive(self) -> None:
        """The loop turns."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service is on its way out."""
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
            return  # training does not depend on who watches it

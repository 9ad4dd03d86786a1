"""What goes over this machine's line, and whether packets queue there.

A queue at our line delays all that we send, so the least delay of all paths that carry something
now tells of it; a peer whose line is full delays its own path alone. The kernel measures each
connection's round trip from packets and their acknowledgements: what waits in our own buffers does
not count. State: the bytes of each connection at the last look, and of all in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from client.net.host import Connection
from protocol.relay.lending import Traffic

SENDS_BYTES: Final = 16 * 1024
"""A path that has carried so much since the last look carries something."""


class OwnLine:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._counted: dict[int, Traffic] = {}
        self._up = self._down = 0

    def look(self, connections: Iterable[Connection]) -> tuple[Traffic, float]:
        """Return what has been moved since the first look, and the seconds that packets wait.

        Args:
            connections: all that are no circuits.
        """
        counted: dict[int, Traffic] = {}
        waits: list[float] = []
        for connection in connections:
            up, down = connection.bytes_out, connection.bytes_in
            before = self._counted.get(connection.number)
            counted[connection.number] = Traffic(up, down)
            if before is None:
                continue
            self._up += up - int(before.up)
            self._down += down - int(before.down)
            if up - before.up >= SENDS_BYTES:
                waits.append(connection.queue_s)
        self._counted = counted
        return Traffic(self._up, self._down), min(waits, default=0.0)

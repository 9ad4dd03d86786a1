"""A port of ours at which peers are awaited, each of whom comes from a host that we know.

A router may show a peer's port to us as another one than to everybody else, so nobody can dial it.
But it can dial us, where our router lets in at a port whom we have written to from it, or anybody.
Several may be awaited at one port, and a system gives what arrives to any of those who listen: so
one socket listens for all, and hands each connection to who awaits its host. Anybody else's is
closed. State: the socket, and who waits.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

BACKLOG = 16
RETRY_S = 0.1
"""After a connection that could not be taken."""

_open: trio.lowlevel.RunVar[dict[tuple[str, int], Rendezvous]] = trio.lowlevel.RunVar("rendezvous")


@dataclass(frozen=True, slots=True, eq=False)
class _Awaited:
    """Who waits: for whom, where the connection goes, and what ends the wait."""

    host: str
    came: list[trio.SocketStream]
    scope: trio.CancelScope


@contextmanager
def await_at(kind: str, port: int) -> Iterator[Rendezvous]:
    """Listen at a port for hosts of a kind, with all others who do so at this moment.

    Raises:
        OSError: we cannot listen there.
    """
    known = _open.get({})
    _open.set(known)
    if (kind, port) not in known:
        known[kind, port] = Rendezvous(kind, port)
    rendezvous = known[kind, port]
    rendezvous.users += 1
    try:
        yield rendezvous
    finally:
        rendezvous.users -= 1
        if not rendezvous.users:
            del known[kind, port]
            rendezvous.close()


class Rendezvous:
    """One port; other sockets may have it, too.

    Raises:
        OSError: we cannot listen there.
    """

    def __init__(self, kind: str, port: int) -> None:
        family = socket.AF_INET6 if kind == "ip6" else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
            opened.listen(BACKLOG)
            self._socket = trio.socket.from_stdlib_socket(opened)
        except BaseException:
            opened.close()
            raise
        self.users = 0
        self._turn = trio.Lock()
        self._awaited: list[_Awaited] = []

    async def accept(self, host: str) -> trio.SocketStream:
        """Wait for a connection from a host."""
        came: list[trio.SocketStream] = []
        try:
            with trio.CancelScope() as scope:
                entry = _Awaited(host, came, scope)
                self._awaited.append(entry)
                try:
                    async with self._turn:
                        while not came:
                            await self._accept_one()
                finally:
                    if entry in self._awaited:
                        self._awaited.remove(entry)
            return came[0]
        except BaseException:
            for stream in came:
                stream.socket.close()
            raise

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    async def _accept_one(self) -> None:
        """Hand the next connection to the first who awaits its host."""
        try:
            accepted, remote = await self._socket.accept()
        except OSError:  # it has gone again, or we have no descriptor left
            await trio.sleep(RETRY_S)
            return
        host = str(remote[0]).partition("%")[0]
        entry = next((entry for entry in self._awaited if entry.host == host), None)
        if entry is None:
            accepted.close()
            return
        self._awaited.remove(entry)
        entry.came.append(trio.SocketStream(accepted))
        entry.scope.cancel()

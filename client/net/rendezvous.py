"""A port of ours at which peers are awaited, each of whom comes from a host that we know.

A router may show a peer's port to us as another one than to everybody else, so nobody can dial it.
But it can dial us, where our router lets in at a port whom we have written to from it, or anybody.
Several may be awaited at one port, and a system gives what arrives to any of those who listen: so
one socket listens for all, and whoever looks takes what has come for others, too. Anybody else's
connection is closed. State: the socket, who is awaited, and who has come.
"""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio

BACKLOG = 16
LOOK_S = 0.02
"""Between two looks whether somebody has come; nobody is awaited for more than a few seconds."""

_open: trio.lowlevel.RunVar[dict[tuple[str, int], Rendezvous]] = trio.lowlevel.RunVar("rendezvous")


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
            opened.setblocking(False)
        except BaseException:
            opened.close()
            raise
        self.users = 0
        self._socket = opened
        self._awaited = Counter[str]()
        self._came = defaultdict[str, list[socket.socket]](list)

    async def accept(self, host: str) -> trio.SocketStream:
        self._awaited[host] += 1
        try:
            while True:
                self._look()
                if came := self._came[host]:
                    return trio.SocketStream(trio.socket.from_stdlib_socket(came.pop(0)))
                await trio.sleep(LOOK_S)
        finally:
            self._awaited[host] -= 1

    def close(self) -> None:
        self._socket.close()
        for left in self._came.values():
            while left:
                left.pop().close()

    def _look(self) -> None:
        with suppress(OSError):  # nobody, or it has gone again, or we have no descriptor left
            while True:
                accepted, remote = self._socket.accept()
                host = str(remote[0]).partition("%")[0]
                if self._awaited[host] > len(self._came[host]):
                    self._came[host].append(accepted)
                else:
                    accepted.close()

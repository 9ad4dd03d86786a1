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

from client.net.addresses import WILDCARDS
from protocol.hosts import kind_of

BACKLOG = 16
LOOK_S = 0.02
"""Between two looks whether somebody has come; nobody is awaited for more than a few seconds."""

_open: trio.lowlevel.RunVar[dict[tuple[str, int], Rendezvous]] = trio.lowlevel.RunVar("rendezvous")


@contextmanager
def await_at(host: str, port: int) -> Iterator[Rendezvous]:
    """Listen at a port for one connection from a host, with all others who do so at this moment.
    Raises OSError: we cannot listen there."""
    known = _open.get({})
    _open.set(known)
    place = kind_of(host), port
    if place not in known:
        known[place] = Rendezvous(*place)
    rendezvous = known[place]
    rendezvous.awaited[host] += 1
    try:
        yield rendezvous
    finally:
        rendezvous.awaited[host] -= 1
        if not rendezvous.awaited.total():
            del known[place]
            rendezvous.close()


class Rendezvous:
    """One port; other sockets may have it, too. Made by `await_at`."""

    def __init__(self, kind: str, port: int) -> None:
        family = socket.AF_INET6 if kind == "ip6" else socket.AF_INET
        at = WILDCARDS[kind], port
        self._socket = socket.create_server(at, family=family, backlog=BACKLOG, reuse_port=True)
        self._socket.setblocking(False)
        self.awaited = Counter[str]()
        self._came = defaultdict[str, list[socket.socket]](list)

    async def accept(self, host: str) -> trio.SocketStream:
        while True:
            self._look()
            if came := self._came[host]:
                return trio.SocketStream(trio.socket.from_stdlib_socket(came.pop(0)))
            await trio.sleep(LOOK_S)

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
                if self.awaited[host] > len(self._came[host]):
                    self._came[host].append(accepted)
                else:
                    accepted.close()

"""Watches this machine's network and its links: the driver of ``protocol.connectivity``.

Linux says at once when an address or a route changes (netlink, rtnetlink(7)); everywhere, all of
them are looked at every two seconds. State: the machine, and who is told.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import psutil
import trio

from client.net.gateway import routers
from protocol.connectivity.machine import (
    Ask,
    Connectivity,
    ConnectivityEffect,
    Cut,
    DialAgain,
    Doubt,
    Line,
    Renew,
    Surroundings,
)
from protocol.effects import Explain
from protocol.hosts import number_of
from protocol.ids import PeerId

LOOK_S: Final = 2.0
SETTLED_S: Final = 0.2
"""A change comes as several messages: an address goes, another one comes, then a route."""
_GROUPS: Final = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
"""Of devices, addresses and routes, IPv4 and IPv6 (RTMGRP in linux/rtnetlink.h)."""
_MOST_BYTES: Final = 65_536


class Links(Protocol):
    """The part of the network that it uses."""

    def lines(self) -> list[Line]:
        """Return the links that work."""

    def ask(self, peer: PeerId) -> None:
        """Ping a peer on its link."""

    def doubt(self, peer: PeerId) -> None:
        """Dial a peer beside its link, which does not answer."""

    def cut(self, peer: PeerId, reason: str) -> None:
        """End a link that cannot work any more."""

    def dial_again(self) -> None:
        """Dial all wanted peers that are not linked, at once."""

    def network_changed(self) -> None:
        """Forget what held in the network that this machine was in."""


class Watch:
    """See the module's docstring.

    Attributes:
        renew: called when what the world knows of us may be wrong.
        explain: tells the user.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self.machine = Connectivity()
        self.renew: Callable[[], None] = lambda: None
        self.explain: Callable[[Explain], None] = lambda _: None
        self._look_now = trio.Event()

    @property
    def words(self) -> str:
        """The last change and what came of it. See `Connectivity.words`."""
        return self.machine.words(trio.current_time())

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            nursery.start_soon(self._look)
            nursery.start_soon(self._hear_of_changes)

    async def _tick(self) -> None:
        while True:
            self._perform(self.machine.tick(self._links.lines(), trio.current_time()))
            await trio.sleep_until(self.machine.next_deadline())

    async def _look(self) -> None:
        while True:
            here, now = surroundings(), trio.current_time()
            self._perform(self.machine.looked(here, self._links.lines(), now))
            with trio.move_on_after(LOOK_S):
                await self._look_now.wait()
                await trio.sleep(SETTLED_S)
            self._look_now = trio.Event()

    async def _hear_of_changes(self) -> None:
        """Look whenever the system says that something has changed."""
        if sys.platform != "linux":
            return
        with suppress(OSError), _announcements() as announced:  # then there are the looks
            while True:
                await announced.recv(_MOST_BYTES)
                self._look_now.set()

    def _perform(self, effects: list[ConnectivityEffect]) -> None:
        for effect in effects:
            match effect:
                case Ask(peer):
                    self._links.ask(peer)
                case Doubt(peer):
                    self._links.doubt(peer)
                case Cut(peer, reason):
                    self._links.cut(peer, reason)
                case DialAgain():
                    self._links.dial_again()
                case Renew():
                    self._links.network_changed()
                    self.renew()
                case Explain():
                    self.explain(effect)


def surroundings() -> Surroundings:
    """Return this machine's addresses and routers; addresses that hold on one line only are no
    way to anybody."""
    entries = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    hosts = {entry.address.partition("%")[0] for entry in entries if _is_host(entry.address)}
    return Surroundings(frozenset(hosts), routers())


def _is_host(text: str) -> bool:
    number = number_of(text.partition("%")[0])
    return number is not None and not (number.is_loopback or number.is_link_local)


def _announcements() -> trio.socket.SocketType:
    """Return a socket that is told of every change; raises OSError."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    try:
        opened.bind((0, _GROUPS))
        opened.setblocking(False)
        return trio.socket.from_stdlib_socket(opened)
    except BaseException:
        opened.close()
        raise

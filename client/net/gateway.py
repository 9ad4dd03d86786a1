"""Asks this network's router to let others in: by UPnP for a port of IPv4, in another process; by
PCP for a hole in its IPv6 firewall, in datagrams.

Answers are taken from the router alone, checked, and bounded in size and time. No state; PCP takes
the address of the router, which only Linux tells here.
"""

import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import trio

from client.net import pcp
from client.net.addresses import reachable_hosts
from client.net.pcp import Mapped, MappingRefused, Way
from protocol.hosts import is_global

PCP_PORT: Final = 5351
"""Where routers listen for PCP."""
NONCE: Final = os.urandom(pcp.NONCE_BYTES)
"""The same for all requests of this process."""
UPNP: Final = "client.net.upnp"
"""The program that speaks UPnP; it runs by itself."""
WAITS_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Between the repetitions of a datagram (RFC 6887, section 8.1.1), shortened."""
MAX_DATAGRAM_BYTES: Final = 1100
UPNP_S: Final = 20.0
"""Longest wait for a router that speaks UPnP."""
MAX_WORDS: Final = 200
_ROUTES: Final = Path("/proc/thread-self/net/route")
_ROUTES6: Final = Path("/proc/thread-self/net/ipv6_route")
_UP_AND_GATEWAY: Final = 0x0003
T = TypeVar("T")


Routers = tuple[str | None, tuple[str, int] | None]


def routers() -> Routers:
    """Return the routers for IPv4 and IPv6, by which this network is told from another one."""
    return default_gateway(), default_gateway6()


def default_gateway6() -> tuple[str, int] | None:
    """Return the IPv6 address of the router of this network and the number of our line to it. See
    `default_gateway`."""
    with suppress(OSError, ValueError, IndexError):
        for line in _ROUTES6.read_text().splitlines():
            target, bits, _, _, gateway, _, _, _, flags, device = line.split()
            open_way = int(flags, 16) & _UP_AND_GATEWAY == _UP_AND_GATEWAY
            if int(target, 16) == 0 and bits == "00" and open_way:
                number = ipaddress.IPv6Address(bytes.fromhex(gateway))
                return str(number), socket.if_nametoindex(device)
    return None


def default_gateway() -> str | None:
    """Return the IPv4 address of the router of this network; None: there is none, or the system
    does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in _ROUTES.read_text().splitlines()[1:]:
            _, target, gateway, flags, *_ = line.split()
            if target == "00000000" and int(flags, 16) & _UP_AND_GATEWAY == _UP_AND_GATEWAY:
                return str(ipaddress.IPv4Address(bytes.fromhex(gateway)[::-1]))
    return None


async def ask(way: Way, own_port: int, outer_port: int, lease_s: int) -> Mapped:
    """Ask for a mapping.

    Args:
        way: UPnP, or a hole for our own port.
        own_port: ours.
        outer_port: the router's.
        lease_s: how long, in seconds.

    Raises:
        MappingRefused: the router says no, or nobody answers.
    """
    if way == "upnp":
        host = await _upnp("map", outer_port, own_port, lease_s)
        return Mapped(host, outer_port, lease_s)
    return await _pcp(own_port, lease_s)


async def end(way: Way, own_port: int, outer_port: int) -> None:
    """Give a mapping back, if the router still answers."""
    with suppress(MappingRefused):
        if way == "upnp":
            await _upnp("end", outer_port)
        else:
            await _pcp(own_port, 0)


async def _pcp(own_port: int, lease_s: int) -> Mapped:
    with await _router() as router:
        own_host = str(router.getsockname()[0]).partition("%")[0]
        request = pcp.ask_mapping(NONCE, own_host, own_port, lease_s)
        return await _answer(router, request, lambda data: pcp.read_mapping(data, NONCE, own_port))


async def _router() -> trio.socket.SocketType:
    """Return a socket that takes datagrams from the router alone, over IPv6 and from an address
    that lasts: the router opens a hole to that one."""
    found = default_gateway6()
    if found is None:
        raise MappingRefused("the address of the router is not known")
    host, line = found
    return await _connected(socket.AF_INET6, (host, PCP_PORT, 0, line), _own_host6())


def _own_host6() -> str:
    lasting = [host for host in reachable_hosts("::") if is_global(host)]
    if not lasting:
        raise MappingRefused("this machine has no IPv6 address of the internet")
    return lasting[0]


async def _connected(
    family: socket.AddressFamily, router: tuple[object, ...], own_host: str | None = None
) -> trio.socket.SocketType:
    opened = trio.socket.socket(family, socket.SOCK_DGRAM)
    try:
        if own_host is not None:
            await opened.bind((own_host, 0))
        await opened.connect(router)
    except BaseException as error:
        opened.close()
        if isinstance(error, OSError):
            raise MappingRefused(f"the router: {error.strerror}") from error
        raise
    return opened


async def _answer(router: trio.socket.SocketType, request: bytes, read: Callable[[bytes], T]) -> T:
    """Send a request until its answer comes; other datagrams are ignored."""
    for wait_s in WAITS_S:
        with trio.move_on_after(wait_s):
            try:
                await router.send(request)
                while True:
                    with suppress(ValueError):
                        return read(await router.recv(MAX_DATAGRAM_BYTES))
            except OSError as error:
                raise MappingRefused(f"the router: {error.strerror}") from error
    raise MappingRefused("no answer from the router")


async def _upnp(*words: object) -> str:
    """Return what the process of ``upnp`` answers, which ends in time.

    Raises:
        MappingRefused: the router says no, or nobody answers.
    """
    command = [sys.executable, "-m", UPNP, str(UPNP_S), *map(str, words)]
    try:
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise MappingRefused(f"the router cannot be asked: {error.strerror}") from error
    said = done.stdout.decode(errors="replace").strip()[:MAX_WORDS]
    if done.returncode:
        raise MappingRefused(said or "no answer from the router", conflict="Conflict" in said)
    return said

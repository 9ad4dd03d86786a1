"""Asks this network's router to let others in: by UPnP for a port of IPv4, in another process; by
PCP (RFC 6887) for a hole in its IPv6 firewall, in datagrams.

Answers are taken from the router alone, checked, and bounded in size and time. No state; PCP takes
the address of the router, which only Linux tells here.
"""

import ipaddress
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import trio

from client.net.addresses import reachable_hosts
from protocol.hosts import is_global

PCP_PORT: Final = 5351
"""Where routers listen for PCP."""
NONCE: Final = os.urandom(12)
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
_VERSION, _MAP, _ANSWER, _TCP = 2, 1, 0x80, 6
_HEADER, _BODY = ">BBHI16s", ">12sB3xHH16s"
_SIZE: Final = 24 + 36
_ANY_HOST: Final = bytes(16)

Way = Literal["upnp", "pinhole"]
"""UPnP, which maps a port of IPv4; or PCP for a hole in an IPv6 firewall, where the address and the
port stay ours."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A port that a router passes on to ours.

    Attributes:
        host: the router's outer address.
        port: its outer port.
        lease_s: it ends then, unless it is renewed.
    """

    host: str
    port: int
    lease_s: float


class MappingRefused(Exception):
    """The router does not map, in words; ``conflict``: the port is somebody else's."""

    def __init__(self, reason: str, *, conflict: bool = False) -> None:
        super().__init__(reason)
        self.conflict = conflict


def routers() -> tuple[str | None, tuple[str, int] | None]:
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
    """Ask for a mapping of the router's port to ours; a hole is for our own port. Raises
    MappingRefused: the router says no, or nobody answers."""
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
    """Ask over IPv6 from an address that lasts: the router opens a hole to that one. Datagrams of
    others, and those that are no answer, are ignored."""
    if (found := default_gateway6()) is None:
        raise MappingRefused("the address of the router is not known")
    own_host = next(filter(is_global, reachable_hosts("::")), None)
    if own_host is None:
        raise MappingRefused("this machine has no IPv6 address of the internet")
    host, line = found
    request = ask_mapping(own_host, own_port, lease_s)
    with trio.socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as router:
        try:
            await router.bind((own_host, 0))
            await router.connect((host, PCP_PORT, 0, line))
            for wait_s in WAITS_S:
                with trio.move_on_after(wait_s):
                    await router.send(request)
                    while True:
                        with suppress(ValueError):
                            return read_mapping(await router.recv(MAX_DATAGRAM_BYTES), own_port)
        except OSError as error:
            raise MappingRefused(f"the router: {error.strerror}") from error
    raise MappingRefused("no answer from the router")


def ask_mapping(own_host: str, own_port: int, lease_s: int) -> bytes:
    """Return the request for a hole (sections 7.1 and 11.1) from an IPv6 address, a number; a lease
    of 0 s closes it."""
    host = ipaddress.IPv6Address(own_host).packed
    header = struct.pack(_HEADER, _VERSION, _MAP, 0, lease_s, host)
    return header + struct.pack(_BODY, NONCE, _TCP, own_port, own_port, _ANY_HOST)


def read_mapping(data: bytes, own_port: int) -> Mapped:
    """Return the mapping of an answer (sections 7.2 and 11.1).

    Raises:
        MappingRefused: the router says no, or does not speak PCP.
        ValueError: it is no answer to this request.
    """
    if len(data) >= 4 and data[0] == 0 and data[1] & _ANSWER:
        raise MappingRefused("it speaks NAT-PMP only")
    if len(data) < _SIZE or data[0] != _VERSION or data[1] != _ANSWER | _MAP:
        raise ValueError("no answer of PCP to this request")
    answered, protocol, own, outer, host = struct.unpack(_BODY, data[24:_SIZE])
    if answered != NONCE or protocol != _TCP or own != own_port:
        raise ValueError("an answer to another request")
    if result := data[3]:
        raise MappingRefused(f"it refuses with code {result} (section 7.4)")
    (lease_s,) = struct.unpack(">I", data[4:8])
    if lease_s and not outer:
        raise ValueError("a mapping without a port")
    return Mapped(str(ipaddress.IPv6Address(host)), outer, lease_s)


async def _upnp(*words: object) -> str:
    """Return what the process of ``upnp`` answers, which ends in time. Raises MappingRefused: the
    router says no, or nobody answers."""
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

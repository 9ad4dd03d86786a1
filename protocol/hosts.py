"""Hosts by their numbers: which of them are one place to us.

A home has one IPv4 address, and at least a /64 of IPv6 addresses of which each of its machines may
take as many as it likes. So by *machine* we mean an IPv4 address, or the /64 of an IPv6 address;
and by *prefix*, whose holders are judged together, an IPv4 /24 or an IPv6 /48, which is the most
that a customer usually gets.
"""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, Literal

MACHINE_BITS: Final = 64
PREFIX_BITS: Final = 48

Number = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Outer:
    """A port of ours, and the host and port at which our router shows it to most peers."""

    own_port: int
    host: str
    port: int


def number_of(host: str) -> Number | None:
    """Return the number that a host is written as; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def kind_of(host: str) -> Literal["ip4", "ip6"]:
    """Return the kind of a host that is a number."""
    return "ip6" if ":" in host else "ip4"


def machine_of(host: str) -> str:
    """Return what a host, a number, has in common with all addresses of its machine."""
    return _network(host, MACHINE_BITS) if ":" in host else host


def prefix_of(host: str) -> str:
    """Return the addresses that are judged together with a host, a number."""
    return _network(host, PREFIX_BITS) if ":" in host else host.rpartition(".")[0]


def is_loopback(host: str) -> bool:
    """Whether a host, a number, is this very machine."""
    return host.startswith("127.") or host == "::1"


def is_global(host: str) -> bool:
    """Whether a host is a number by which all of the internet can reach it: one that an address may
    have (``protocol.address``), neither on one line nor in place of an IPv4 address."""
    number = number_of(host)
    if number is None or not number.is_global or number.is_multicast:
        return False
    if isinstance(number, IPv4Address):
        return True
    return not number.is_site_local and number.scope_id is None and number.ipv4_mapped is None


@lru_cache(4096)  # 12 us each, asked again and again of a few hundred hosts
def _network(host: str, bits: int) -> str:
    return str(IPv6Network((host, bits), strict=False))

"""Addresses to dial, to listen on, and to be reached at. The grammar is ``protocol.address``'s."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import psutil
import trio

from client.net.errors import AddressError
from protocol import limits
from protocol.address import Address, parse_peer_address
from protocol.hosts import kind_of, number_of
from protocol.ids import PeerId

WILDCARDS: Final = {"ip4": "0.0.0.0", "ip6": "::"}
"""All addresses of one kind."""
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a machine without a network reaches itself."""
_FAMILIES = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}
MAX_LOOKUPS: Final = 16
"""Names that are looked up at a time, each in a thread: of those that the user names, and of all
others. Anybody may advertise names that nobody answers for."""
_lookups = {named: trio.CapacityLimiter(MAX_LOOKUPS) for named in (True, False)}
_IP6_ADDRESSES = Path("/proc/thread-self/net/if_inet6")
_PASSING = 0x01 | 0x08 | 0x20 | 0x40
"""Flags of Linux's IPv6 addresses (linux/if_addr.h): temporary, double, deprecated, tentative."""


@dataclass(frozen=True, slots=True)
class Destination(Address):
    """An address at which a peer can be dialled, with the peer id that must answer."""

    peer: PeerId

    @property
    def first_hop(self) -> Destination:
        """The address that is dialled: the relay's, where there is one."""
        return self if self.relay is None else replace(self, peer=self.relay, relay=None)


def parse_destination(text: str) -> Destination:
    """Parse a full multiaddr, which names its peer. Raises AddressError: any other form, a bad
    port, or a peer id that is not an Ed25519 one."""
    try:
        address = parse_peer_address(text)
    except ValueError as error:
        raise AddressError(
            f"cannot dial {text[: limits.MAX_ADDRESS_CHARS]!r}: {error}; "
            "expected /ip4|ip6/<address>/tcp/<port>/p2p/<peer id>"
        ) from error
    return Destination(*astuple(address))


async def numeric_host(address: Destination, *, named: bool = True) -> Destination:
    """Return an address with the number of its host in place of a name.

    Args:
        address: of a peer.
        named: whether the user names it, or an earlier session; others do not wait for adverts.

    Raises:
        AddressError: the name has no address of its kind now.
    """
    if address.kind not in _FAMILIES:
        return address
    try:
        host: str = await trio.to_thread.run_sync(
            _look_up,
            address,
            abandon_on_cancel=True,  # type: ignore[call-arg]  # unknown to the stubs
            limiter=_lookups[named],
        )
    except (OSError, UnicodeError) as error:
        raise AddressError(f"{address}: {error}") from error
    return replace(address, kind=kind_of(host), host=host)


def _look_up(address: Destination) -> str:
    """Return the number of a name, in a thread, which nobody can interrupt."""
    found = socket.getaddrinfo(
        address.host, address.port, _FAMILIES[address.kind], socket.SOCK_STREAM
    )
    return str(found[0][4][0]).partition("%")[0]


def reachable_hosts(host: str) -> list[str]:
    """Return the addresses under which a socket bound to ``host`` can be reached from outside.

    Of IPv6, those that last: no address that is only valid on one line, none that was made up to be
    thrown away.
    """
    if host not in WILDCARDS.values():
        return [host]
    found = [own for own in own_hosts() if kind_of(own) == kind_of(host)]
    return _lasting(found) if kind_of(host) == "ip6" else found


def own_hosts() -> list[str]:
    """Return the addresses of this machine, numbers, without loopback, and of IPv6 without those
    that are only valid on one line."""
    entries = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    numbers = ((entry.address, number_of(entry.address)) for entry in entries)
    return [
        host
        for host, number in numbers
        if number is not None
        and not number.is_loopback
        and not (number.version == 6 and number.is_link_local)
    ]


def _lasting(found: list[str]) -> list[str]:
    passing = set()
    with suppress(OSError, ValueError, IndexError):  # only Linux tells
        for line in _IP6_ADDRESSES.read_text().splitlines():
            digits, _, _, _, flags = line.split()[:5]
            if int(flags, 16) & _PASSING:
                passing.add(bytes.fromhex(digits))
    return [host for host in found if ip_address(host).packed not in passing] or found

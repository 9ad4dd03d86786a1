"""Addresses to dial, to listen on, and to be reached at.

The grammar of multiaddrs is ``protocol.address``'s; IPv6 is refused until its listener is hardened.
"""

from __future__ import annotations

import ipaddress
from dataclasses import astuple, dataclass, replace

import psutil
import trio

from client.net.errors import AddressError
from client.net.transport import usual_addresses
from protocol import limits
from protocol.address import Address, parse_address, parse_peer_address
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Destination(Address):
    """An address at which a peer can be dialled, with the peer id that must answer."""

    peer: PeerId

    @property
    def first_hop(self) -> Destination:
        """The address that is dialled: the relay's, where there is one."""
        return self if self.relay is None else replace(self, peer=self.relay, relay=None)


def parse_destination(text: str) -> Destination:
    """Parse a full multiaddr, which names its peer.

    Raises:
        AddressError: any other form, a bad port, or a peer id that is not an Ed25519 one.
    """
    try:
        address = parse_peer_address(text)
    except ValueError as error:
        raise AddressError(
            f"cannot dial {text[: limits.MAX_ADDRESS_CHARS]!r}: {error}; "
            "expected /ip4/<address>/tcp/<port>/p2p/<peer id>"
        ) from error
    return Destination(*astuple(address))


async def numeric_host(address: Destination) -> Destination:
    """Return an address with the number of its host in place of a name.

    Raises:
        AddressError: the name has no IPv4 address now.
    """
    if _is_ip4(address.host):
        return address
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, trio.socket.AF_INET, trio.socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise AddressError(f"{address}: {error}") from error
    return replace(address, kind="ip4", host=str(found[0][4][0]))


def parse_listen(where: str | tuple[str, int]) -> list[Address]:
    """Return the addresses to listen on: one multiaddr, or all transports on an IPv4 address and
    port.

    Raises:
        AddressError: neither.
    """
    if isinstance(where, tuple):
        host, port = where
        if not _is_ip4(host) or not 0 <= port <= 65535:
            what = f"{host!r} port {port}: not an IPv4 address and port"
            raise AddressError(f"cannot listen on {what}")
        return usual_addresses(host, port)
    try:
        address = parse_address(where, lowest_port=0)
    except ValueError as error:
        raise AddressError(f"cannot listen on {where!r}: {error}") from error
    if address.kind != "ip4" or address.peer is not None:
        raise AddressError(f"cannot listen on {where!r}: expected /ip4/<address>/tcp/<port>")
    return [address]


def reachable_hosts(host: str) -> list[str]:
    """Return the addresses under which a socket bound to ``host`` can be reached."""
    if host != "0.0.0.0":
        return [host]
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if _is_ip4(entry.address)
    ]
    outside = [address for address in found if not ipaddress.ip_address(address).is_loopback]
    return outside or ["127.0.0.1"]


def _is_ip4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True

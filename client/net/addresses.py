"""Addresses as sockets want them: what to dial, where to listen, and where we can be reached.

The grammar of multiaddrs is ``protocol.address``'s; IPv6 is refused until its listener is hardened.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

import psutil
import trio

from client.net.errors import AddressError
from protocol import limits
from protocol.address import Address, parse_peer_address
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a peer can be dialled, and who must answer there."""

    host: str
    port: int
    peer: PeerId
    text: str

    def __str__(self) -> str:
        """Return the multiaddr."""
        return self.text


def parse_address(text: str) -> Destination:
    """Parse a full multiaddr, which names its peer.

    Raises:
        AddressError: any other form, a bad port, or a peer id that is not an Ed25519 one.
    """
    try:
        address = parse_peer_address(text)
        if address.peer is not None:
            return Destination(address.host, address.port, address.peer, str(address))
        raise ValueError("it names no peer")
    except ValueError as error:
        raise AddressError(
            f"cannot dial {text[: limits.MAX_ADDRESS_CHARS]!r}: {error}; "
            "expected /ip4/<address>/tcp/<port>/p2p/<peer id>"
        ) from error


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
    host = str(found[0][4][0])
    return replace(address, host=host, text=own_address(host, address.port, address.peer))


def own_address(host: str, port: int, peer: PeerId) -> str:
    """Return the multiaddr under which others can dial a socket of ours."""
    return str(Address("ip4", host, port, peer))


def parse_listen(where: str | tuple[str, int]) -> tuple[str, int]:
    """Return the IPv4 address and port to listen on, from a pair or ``/ip4/<a>/tcp/<port>``.

    Raises:
        AddressError: neither.
    """
    if isinstance(where, tuple):
        host, port = where
    else:
        match where.split("/"):
            case ["", "ip4", host, "tcp", text]:
                port = _parse_port(text, where, lowest=0)
            case _:
                raise AddressError(
                    f"cannot listen on {where!r}: expected /ip4/<address>/tcp/<port>"
                )
    if not _is_ip4(host) or not 0 <= port <= 65535:
        raise AddressError(f"cannot listen on {host!r} port {port}: not an IPv4 address and port")
    return host, port


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


def _parse_port(text: str, whole: str, lowest: int = 1) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 5 and lowest <= int(text) <= 65535:
        return int(text)
    raise AddressError(f"bad port in {whole!r}")

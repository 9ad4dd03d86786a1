"""Addresses of peers: strict parsing of the few multiaddr forms this client dials.

    /ip4/<a.b.c.d>/tcp/<port>/p2p/<peer id>      /dns4/<name>/tcp/<port>/p2p/<peer id>

Adverts and invites carry addresses from strangers, hence a small parser that accepts two forms
instead of a general one. IPv6 is refused until its listener is hardened.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

import psutil

from client.net.errors import AddressError
from protocol import limits
from protocol.ids import PeerId, parse_peer_id

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer can be dialled, and who must answer there."""

    host: str
    port: int
    peer: PeerId

    def __str__(self) -> str:
        kind = "ip4" if _is_ip4(self.host) else "dns4"
        return f"/{kind}/{self.host}/tcp/{self.port}/p2p/{self.peer}"


def parse_address(text: str) -> Address:
    """Parse a full multiaddr.

    Raises:
        AddressError: any other form, a bad port, or a peer id that is not an Ed25519 one.
    """
    parts = text.split("/") if len(text) <= limits.MAX_ADDRESS_CHARS else []
    match parts:
        case ["", "ip4", host, "tcp", port, "p2p", peer] if _is_ip4(host):
            return Address(host, _parse_port(port, text), _parse_peer(peer, text))
        case ["", "dns4", host, "tcp", port, "p2p", peer] if _NAME.match(host):
            return Address(host, _parse_port(port, text), _parse_peer(peer, text))
    raise AddressError(
        f"cannot dial {text[: limits.MAX_ADDRESS_CHARS]!r}: "
        "expected /ip4/<address>/tcp/<port>/p2p/<peer id>"
    )


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


def _parse_peer(text: str, whole: str) -> PeerId:
    try:
        return parse_peer_id(text)
    except ValueError as error:
        raise AddressError(f"bad peer id in {whole!r}: {error}") from error

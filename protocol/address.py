"""Addresses of peers: the small part of the multiaddr grammar that this program dials.

``/ip4/<a.b.c.d>/tcp/<port>`` or ``/dns4/<host>/tcp/<port>``, with ``/p2p/<peer id>`` behind it
where the peer is known. Text from strangers is parsed here before any library sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from protocol.ids import PeerId, parse_peer_id
from protocol.limits import MAX_ADDRESS_CHARS

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_MAX_HOST_CHARS = 180


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer listens; ``peer`` is None when the address does not name it."""

    kind: Literal["ip4", "dns4"]
    host: str
    port: int
    peer: PeerId | None = None

    def __str__(self) -> str:
        """Return the canonical multiaddr."""
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{suffix}"


def parse_address(text: str) -> Address:
    """Parse a multiaddr of the grammar above.

    Raises:
        ValueError: anything else, in words a user can act on.
    """
    if len(text) > MAX_ADDRESS_CHARS:
        raise ValueError(f"an address has at most {MAX_ADDRESS_CHARS} characters")
    match text.split("/"):
        case ["", "ip4" | "dns4" as kind, host, "tcp", port]:
            peer = None
        case ["", "ip4" | "dns4" as kind, host, "tcp", port, "p2p", name]:
            peer = parse_peer_id(name)
        case _:
            raise ValueError(f"not /ip4|dns4/HOST/tcp/PORT[/p2p/PEER]: {text[:80]!r}")
    if not (_is_ip4(host) if kind == "ip4" else _is_host(host)):
        raise ValueError(f"not a host of kind {kind}: {host[:80]!r}")
    return Address(kind, host, _port(port), peer)


def parse_peer_address(text: str) -> Address:
    """Parse a multiaddr that names its peer, as invites need; raises ``ValueError``."""
    address = parse_address(text)
    if address.peer is None:
        raise ValueError(f"the address does not end in /p2p/PEER-ID: {text[:80]!r}")
    return address


def _is_ip4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(_NUMBER.fullmatch(p) and int(p) <= 255 for p in parts)


def _is_host(host: str) -> bool:
    labels = host.split(".")
    return len(host) <= _MAX_HOST_CHARS and all(_LABEL.fullmatch(label) for label in labels)


def _port(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"not a TCP port: {text[:8]!r}")
    return int(text)

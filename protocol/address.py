"""Addresses of peers: the small part of the multiaddr grammar that this program dials.

``/ip4/<a.b.c.d>/tcp/<port>`` or ``/dns4/<host>/tcp/<port>``, with ``/p2p/<peer id>`` behind it
where the peer is known; in place of ``tcp``, any transport of ``TRANSPORTS``. A peer that nobody
can dial is reached through a relay: ``<the relay's address>/p2p/<relay>/p2p-circuit/p2p/<peer>``.
Text from strangers is parsed here before any library sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.ids import PeerId, parse_peer_id
from protocol.limits import MAX_ADDRESS_CHARS

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_MAX_HOST_CHARS = 180
CIRCUIT: Final = "p2p-circuit"
"""Says in a multiaddr that the peer before it relays."""

TRANSPORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("tcp",),
}
"""How addresses of each transport are written: the protocols that follow the host in a multiaddr,
with the port behind the first of them; QUIC's would be ``("udp", "quic-v1")``. A new transport is a
line here and the file of its name in ``client/net``."""


@dataclass(frozen=True, slots=True)
class Address:
    """An address at which a peer listens.

    Attributes:
        peer: None when the address does not name it.
        transport: one of ``TRANSPORTS``.
        relay: the peer that listens there and passes connections on to ``peer``; None: ``peer``
            listens there itself.
    """

    kind: Literal["ip4", "dns4"]
    host: str
    port: int
    peer: PeerId | None = None
    transport: str = "tcp"
    relay: PeerId | None = None

    def __str__(self) -> str:
        """Return the canonical multiaddr."""
        first, *others = TRANSPORTS[self.transport]
        relay = ("p2p", self.relay, CIRCUIT) if self.relay else ()
        peer = ("p2p", self.peer) if self.peer else ()
        return "/".join(("", self.kind, self.host, first, str(self.port), *others, *relay, *peer))


def parse_address(text: str, *, lowest_port: int = 1) -> Address:
    """Parse a multiaddr of the grammar above.

    Args:
        text: from anybody.
        lowest_port: 0 where the system may choose the port, for listening.

    Raises:
        ValueError: anything else, in words a user can act on.
    """
    if len(text) > MAX_ADDRESS_CHARS:
        raise ValueError(f"an address has at most {MAX_ADDRESS_CHARS} characters")
    peer = relay = None
    match text.split("/"):
        case [
            "",
            "ip4" | "dns4" as kind,
            host,
            first,
            port,
            *others,
            "p2p",
            by,
            how,
            "p2p",
            name,
        ] if how == CIRCUIT:
            relay, peer = parse_peer_id(by), parse_peer_id(name)
        case ["", "ip4" | "dns4" as kind, host, first, port, *others, "p2p", name]:
            peer = parse_peer_id(name)
        case ["", "ip4" | "dns4" as kind, host, first, port, *others]:
            pass
        case _:
            raise ValueError(f"not {_grammar()}: {text[:80]!r}")
    ways = (name for name, protocols in TRANSPORTS.items() if protocols == (first, *others))
    transport = next(ways, None)
    if transport is None:
        raise ValueError(f"not {_grammar()}: {text[:80]!r}")
    if not (_is_ip4(host) if kind == "ip4" else _is_host(host)):
        raise ValueError(f"not a host of kind {kind}: {host[:80]!r}")
    if relay is not None and relay == peer:
        raise ValueError(f"a peer is no relay of its own: {text[:80]!r}")
    return Address(kind, host, _port(port, first, lowest_port), peer, transport, relay)


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


def _port(text: str, protocol: str, lowest: int) -> int:
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= 65535:
        raise ValueError(f"not a {protocol.upper()} port: {text[:8]!r}")
    return int(text)


def _grammar() -> str:
    ways = "|".join("/".join((first, "PORT", *rest)) for first, *rest in TRANSPORTS.values())
    return f"/ip4|dns4/HOST/{ways}[/p2p/PEER][/{CIRCUIT}/p2p/PEER]"

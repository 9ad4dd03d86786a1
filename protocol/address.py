"""Addresses of peers: the small part of the multiaddr grammar that this program dials.

``/ip4/<a.b.c.d>/tcp/<port>``, ``/ip6/<a:b::c>/tcp/<port>`` or, with a name of a host that has such
a number, ``/dns4/`` and ``/dns6/``; ``/p2p/<peer id>`` behind it where the peer is known. A peer
that nobody can dial is reached through a relay:
``<the relay's address>/p2p/<relay>/p2p-circuit/p2p/<peer>``. Text from strangers is parsed here
before any library sees it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final, Literal, get_args

from protocol.hosts import number_of
from protocol.ids import PeerId, parse_peer_id
from protocol.limits import MAX_ADDRESS_CHARS

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)
_MAX_HOST_CHARS = 114
"""Of a name: whoever is reached through the peer there has an address, too."""
CIRCUIT: Final = "p2p-circuit"
"""Says in a multiaddr that the peer before it relays."""

Kind = Literal["ip4", "ip6", "dns4", "dns6"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Address:
    """An address at which a peer listens.

    Attributes:
        host: a number, in the one way that it is written (RFC 5952), or a name.
        peer: None when the address does not name it.
        relay: the peer that listens there and passes connections on to ``peer``; None: ``peer``
            listens there itself.
    """

    kind: Kind
    host: str
    port: int
    peer: PeerId | None = None
    relay: PeerId | None = None

    def __str__(self) -> str:
        """Return the canonical multiaddr."""
        relay = ("p2p", self.relay, CIRCUIT) if self.relay else ()
        peer = ("p2p", self.peer) if self.peer else ()
        return "/".join(("", self.kind, self.host, "tcp", str(self.port), *relay, *peer))


def parse_address(text: str) -> Address:
    """Parse a multiaddr of the grammar above, from anybody.

    Raises:
        ValueError: anything else, in words a user can act on.
    """
    if len(text) > MAX_ADDRESS_CHARS:
        raise ValueError(f"an address has at most {MAX_ADDRESS_CHARS} characters")
    peer = relay = None
    match text.split("/"):
        case ["", found, host, "tcp", port, "p2p", by, how, "p2p", name] if how == CIRCUIT:
            relay, peer = parse_peer_id(by), parse_peer_id(name)
        case ["", found, host, "tcp", port, "p2p", name]:
            peer = parse_peer_id(name)
        case ["", found, host, "tcp", port]:
            pass
        case _:
            raise ValueError(f"not {_grammar()}: {text[:80]!r}")
    kind = next((kind for kind in KINDS if kind == found), None)
    if kind is None:
        raise ValueError(f"not {_grammar()}: {text[:80]!r}")
    if relay is not None and relay == peer:
        raise ValueError(f"a peer is no relay of its own: {text[:80]!r}")
    return Address(kind, _host(kind, host), _port(port), peer, relay)


def parse_peer_address(text: str) -> Address:
    """Parse a multiaddr that names its peer, as invites need; raises ``ValueError``."""
    address = parse_address(text)
    if address.peer is None:
        raise ValueError(f"the address does not end in /p2p/PEER-ID: {text[:80]!r}")
    return address


def by_peer(addresses: Iterable[Address]) -> dict[PeerId, list[Address]]:
    """Return the addresses of each peer in their order, without those that name none."""
    found: dict[PeerId, list[Address]] = {}
    for address in addresses:
        if address.peer is not None:
            found.setdefault(address.peer, []).append(address)
    return found


def _host(kind: Kind, text: str) -> str:
    """Return a name, or a number in its one spelling.

    An IPv6 address that stands for an IPv4 address is refused, for all that is counted by address
    would take it for another, and so is one that only means something on one line of one machine.
    """
    if kind in ("dns4", "dns6") and _is_host(text):
        return text
    number = number_of(text) if text.isascii() else None
    odd = isinstance(number, IPv6Address) and (number.scope_id or number.ipv4_mapped)
    if number is None or odd or kind != f"ip{number.version}":
        raise ValueError(f"not a host of kind {kind}: {text[:80]!r}")
    return str(number)


def _is_host(host: str) -> bool:
    labels = host.split(".")
    return len(host) <= _MAX_HOST_CHARS and all(_LABEL.fullmatch(label) for label in labels)


def _port(text: str) -> int:
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"not a TCP port: {text[:8]!r}")
    return int(text)


def _grammar() -> str:
    return f"/{'|'.join(KINDS)}/HOST/tcp/PORT[/p2p/PEER][/{CIRCUIT}/p2p/PEER]"

"""What a router answers to the wish for a mapping; and PCP (RFC 6887): the request and answer that
let others in at a TCP port through an IPv6 firewall. Bytes in, values out; no sockets.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final, Literal

NONCE_BYTES: Final = 12
_VERSION, _MAP, _ANSWER, _TCP = 2, 1, 0x80, 6
_HEADER, _BODY = ">BBHI16s", ">12sB3xHH16s"
_SIZE: Final = 24 + 36
_ANY_HOST: Final = bytes(16)
_REASONS: Final = {
    1: "it speaks another version",
    2: "its owner does not allow mappings",
    3: "it does not understand the request",
    4: "it does not know this operation",
    8: "it has no room for more mappings",
    9: "it does not map ports of TCP",
    10: "this machine has too many mappings",
    11: "the port is somebody else's",
    12: "another router is in between",
}
"""Section 7.4."""

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


def ask_mapping(nonce: bytes, own_host: str, own_port: int, lease_s: int) -> bytes:
    """Return the request for a hole (sections 7.1 and 11.1); a lease of 0 closes it.

    Args:
        nonce: 12 bytes, the same for all requests about one mapping.
        own_host: IPv6 address from which the request is sent, a number.
        own_port: ours, and the one that we would like outside.
        lease_s: how long, in seconds.
    """
    host = IPv6Address(own_host).packed
    header = struct.pack(_HEADER, _VERSION, _MAP, 0, lease_s, host)
    return header + struct.pack(_BODY, nonce, _TCP, own_port, own_port, _ANY_HOST)


def read_mapping(data: bytes, nonce: bytes, own_port: int) -> Mapped:
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
    if answered != nonce or protocol != _TCP or own != own_port:
        raise ValueError("an answer to another request")
    if result := data[3]:
        raise MappingRefused(_REASONS.get(result, f"it refuses with code {result}"))
    (lease_s,) = struct.unpack(">I", data[4:8])
    if lease_s and not outer:
        raise ValueError("a mapping without a port")
    return Mapped(str(IPv6Address(host)), outer, lease_s)

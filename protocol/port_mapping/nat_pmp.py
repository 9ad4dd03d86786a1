"""NAT-PMP (RFC 6886): the three messages that map a TCP port. Bytes in, values out; pure."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from typing import Final

from protocol.port_mapping.mapped import MappingRefused

ASK_ADDRESS: Final = b"\0\0"
"""Asks for the router's outer address (section 3.2)."""
_MAP_TCP: Final = 2
_ANSWER: Final = 128
_REASONS: Final = {
    1: "it speaks another version",
    2: "its owner does not allow mappings",
    3: "it has no address itself",
    4: "it has no room for more mappings",
    5: "it does not map ports of TCP",
}
"""Section 3.5."""


def ask_mapping(own_port: int, outer_port: int, lease_s: int) -> bytes:
    """Return the request for a mapping (section 3.3); a lease of 0 ends it."""
    return struct.pack(">BBHHHI", 0, _MAP_TCP, 0, own_port, outer_port if lease_s else 0, lease_s)


def read_address(data: bytes) -> str:
    """Return the outer address of the answer to ``ASK_ADDRESS``.

    Raises:
        MappingRefused: the router says no.
        ValueError: it is no such answer.
    """
    _check(data, 0, 12)
    return str(IPv4Address(data[8:12]))


def read_mapping(data: bytes, own_port: int) -> tuple[int, int]:
    """Return the outer port and the lease in seconds of the answer to ``ask_mapping``.

    Raises:
        MappingRefused: the router says no.
        ValueError: it is no answer to this request.
    """
    _check(data, _MAP_TCP, 16)
    _, _, _, _, own, outer, lease_s = struct.unpack(">BBHIHHI", data[:16])
    if own != own_port or (lease_s and not outer):
        raise ValueError("an answer to another request")
    return outer, lease_s


def _check(data: bytes, operation: int, size: int) -> None:
    if len(data) < 4 or data[0] != 0 or data[1] != _ANSWER + operation:
        raise ValueError("no answer of NAT-PMP to this request")
    (result,) = struct.unpack(">H", data[2:4])
    if result:
        raise MappingRefused(_REASONS.get(result, f"it refuses with code {result}"))
    if len(data) < size:
        raise ValueError("an answer that is too short")

"""What a router answers to the wish for a mapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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

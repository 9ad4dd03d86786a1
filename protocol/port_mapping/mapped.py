"""What a router answers to the wish for a mapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Way = Literal["pcp", "upnp", "pinhole"]
"""``pinhole``: PCP for a hole in an IPv6 firewall; the address and the port stay ours."""
WAYS: Final[tuple[Way, ...]] = ("pcp", "upnp")
"""Those that map a port of IPv4."""
PINHOLE: Final[tuple[Way, ...]] = ("pinhole",)
GATEWAY_PORT: Final = 5351
"""Where routers listen for PCP."""


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

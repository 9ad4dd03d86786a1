"""The hosts of a benchmark's peers: all on loopback, or each on a host of a network laboratory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.netlab.lab import Host, Lab

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Hosts:
    """Addresses and commands of the peers, by their number."""

    lab: Lab | None = None

    def address(self, index: int) -> str:
        """Return the IPv4 address at which a peer listens."""
        return self.lab.address(_name(index)) if self.lab else LOOPBACK

    def command(self, index: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs a peer where it belongs."""
        return self.lab.command(_name(index), command) if self.lab else list(command)


@contextmanager
def hosts(mbit: Sequence[float], *, symmetric: bool = False) -> Iterator[Hosts]:
    """Give every peer an uplink of its rate (Mb/s); none: loopback.

    Downlinks are as wide as the widest uplink, or each as its own.

    Raises:
        UserError: lines need rights or tools that are missing.
    """
    if not mbit:
        yield Hosts()
        return
    widest = max(mbit)
    lines = {_name(i): Host(up, up if symmetric else widest) for i, up in enumerate(mbit)}
    with Lab(lines) as lab:
        yield Hosts(lab)


def _name(index: int) -> str:
    return f"p{index}"

"""Where a benchmark's peers run: all on loopback, or each on a host of a network laboratory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.netlab.lab import Lab
from tests.netlab.table import Host, Table

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
def hosts(mbit: Sequence[float]) -> Iterator[Hosts]:
    """Give every peer an uplink of its rate (Mb/s), and all the widest as downlink; none: loopback.

    Raises:
        UserError: lines need rights or tools that are missing.
    """
    if not mbit:
        yield Hosts()
        return
    lines = {_name(index): Host(up, max(mbit)) for index, up in enumerate(mbit)}
    with Lab(Table(lines)) as lab:
        yield Hosts(lab)


def _name(index: int) -> str:
    return f"p{index}"

"""The plan of a laboratory: hosts with their lines, and the paths between them.

mtu = 1500                  # all of the first three lines are optional
queue_ms = 100              # what a full line holds back before it drops
everywhere = { rtt_ms = 50 }

[hosts.a]
up_mbit = 50
down_mbit = 100
[hosts.b]
up_mbit = 50
down_mbit = 100

[[links]]                   # replaces ``everywhere`` for one pair
between = ["a", "b"]
rtt_ms = 80
jitter_ms = 5
loss = 0.01
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from client.errors import UserError

MAX_HOSTS = 64
MAX_TABLE_BYTES = 64 * 1024
CORE = "core"
"""The name of what joins all hosts; none of them has it."""
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")

Rate = Annotated[float, Meta(gt=0, le=10_000)]


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """One host's line to everybody, Mb/s of Ethernet frames; both directions at the same time."""

    up_mbit: Rate
    down_mbit: Rate


class Link(Struct, frozen=True, forbid_unknown_fields=True):
    """The path between two hosts, equal in both directions."""

    rtt_ms: Annotated[float, Meta(ge=0, le=5000)] = 0.0
    jitter_ms: Annotated[float, Meta(ge=0, le=1000)] = 0.0
    """Most additional delay each way, drawn for every packet; order is kept."""
    loss: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    """Share of packets lost, each way, one independent of the other."""

    @property
    def clear(self) -> bool:
        """Whether packets pass as they are."""
        return not (self.rtt_ms or self.jitter_ms or self.loss)


class Pair(Link, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The link of two named hosts."""

    between: tuple[str, str]


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole laboratory."""

    hosts: Annotated[dict[str, Host], Meta(min_length=1, max_length=MAX_HOSTS)]
    everywhere: Link = Link()
    links: list[Pair] = []
    mtu: Annotated[int, Meta(ge=576, le=65_000)] = 1500
    """Bytes of a packet at most. Larger ones cost the wire less: 400 Mb/s over 200 ms take 9000."""
    queue_ms: Annotated[float, Meta(ge=1, le=2000)] = 100.0

    def __post_init__(self) -> None:
        for name in self.hosts:
            if not _NAME.fullmatch(name) or name == CORE:
                raise ValueError(
                    f"{name!r} is no host name: a small letter, then up to 7 or digits"
                )
        seen = set()
        for pair in self.links:
            unknown = [name for name in pair.between if name not in self.hosts]
            if unknown or pair.between[0] == pair.between[1]:
                raise ValueError(f"a link is between two hosts of the table, not {pair.between}")
            if frozenset(pair.between) in seen:
                raise ValueError(f"the link between {pair.between} is there twice")
            seen.add(frozenset(pair.between))

    def link(self, one: str, other: str) -> Link:
        """Return what lies between two hosts."""
        ends = {one, other}
        return next((pair for pair in self.links if set(pair.between) == ends), self.everywhere)

    def pairs(self) -> list[tuple[str, str]]:
        """Return every two hosts once."""
        return list(combinations(self.hosts, 2))

    def rate_mbit(self, source: str, target: str) -> float:
        """Return the narrower of the two lines."""
        return min(self.hosts[source].up_mbit, self.hosts[target].down_mbit)


def uniform(names: list[str], mbit: float, link: Link, mtu: int = 1500) -> Table:
    """Return a table of equal hosts."""
    return Table(hosts={name: Host(mbit, mbit) for name in names}, everywhere=link, mtu=mtu)


def read_table(path: Path) -> Table:
    """Read a table.

    Raises:
        UserError: there is none, or it is not one.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
        if len(data) > MAX_TABLE_BYTES:
            raise UserError(f"{path} is larger than {MAX_TABLE_BYTES} bytes")
        return msgspec.toml.decode(data, type=Table)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: {error}") from error

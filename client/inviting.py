"""Fresh invites: the members that a newcomer should dial, and the reach of such an invite. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final, Literal

from protocol.address import Address
from protocol.hosts import is_global, is_loopback, number_of
from protocol.invite import SwarmFile
from protocol.vouching.ticket import TICKET_LIFE_S, Ticket

Reach = Literal["internet", "network", "machine"]
"""The network from which an address can be reached."""

MAX_ADDRESSES: Final = 8
MAX_PER_MEMBER: Final = 2
NEEDS_VOUCHING: Final = (
    "an invite for one member, or one that expires, needs a swarm founded with --private"
)
_ORDER: Final[tuple[Reach, ...]] = ("internet", "network", "machine")
_ONLY: Final[dict[Reach, str]] = {
    "internet": "",
    "network": "only machines of the same network can use it: no member of it announces a public "
    "address (volunteer config set announce)",
    "machine": "only volunteers on this machine can use it: its members listen on loopback alone",
}


def reach(address: Address) -> Reach:
    """Return the network from which an address can be reached, judged by the address alone."""
    if number_of(address.host) is None:
        return "machine" if address.host == "localhost" else "internet"
    if is_loopback(address.host):
        return "machine"
    return "internet" if is_global(address.host) else "network"


def fresh(swarm: SwarmFile, members: Iterable[Sequence[Address]]) -> SwarmFile:
    """Return the swarm with these members to dial, those with public addresses first.

    Args:
        swarm: its manifest is kept; the ticket by which we came in is not.
        members: the addresses of each member, the most wanted member first.
    """
    best = [sorted(addresses, key=_rank)[:MAX_PER_MEMBER] for addresses in members]
    turns = [address for turn in zip_longest(*best) for address in turn if address is not None]
    ordered = sorted(dict.fromkeys(turns), key=_rank)
    away = [address for address in ordered if reach(address) != "machine"]
    return replace(swarm, peers=tuple((away or ordered)[:MAX_ADDRESSES]), ticket=None)


def ticket_note(ticket: Ticket, life_s: float = TICKET_LIFE_S) -> str:
    """Return what whoever gives away an invite with a ticket of this life should know."""
    who = "one volunteer" if ticket.uses == 1 else f"up to {ticket.uses} volunteers"
    return (
        f"it lets in {who} within {_span(life_s)}, while this volunteer runs; you answer for "
        "whoever uses it"
    )


def _span(seconds: float) -> str:
    """Return a span of time in the largest unit of which it is two at least."""
    units = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
    name = next(name for name, size in units.items() if seconds >= 2 * size or size == 1)
    return f"{seconds / units[name]:.3g} {name}"


def notes(swarm: SwarmFile) -> list[str]:
    """Return the notes for a person who shares the invite."""
    nearest = min(swarm.peers, key=_rank, default=None)
    words = "" if nearest is None else _ONLY[reach(nearest)]
    return [words] if words else []


def _rank(address: Address) -> int:
    return _ORDER.index(reach(address))

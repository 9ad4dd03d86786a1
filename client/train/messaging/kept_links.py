"""The peers that the network keeps dialling: neighbours, and peers that may come back.

A dead neighbour, a partition that heals and a swarm that restarts look alike from here: one side
has to dial again. So recently lost peers are dialled, and the peers named by the last session or
the invite until a record of them arrives. The network applies backoff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protocol.address import Address, by_peer
from protocol.ids import PeerId
from protocol.membership.roster import Roster

MAX_REMEMBERED: Final = 32


class KeptLinks:
    """Addresses by peer, known before the roster knows anybody."""

    def __init__(self, remembered: Iterable[Address] = ()) -> None:
        self._remembered: dict[PeerId, tuple[str, ...]] = {}
        self.meet(remembered)

    def meet(self, addresses: Iterable[Address]) -> None:
        """Remember members that answered; those not met for longest are dropped first."""
        for peer, found in by_peer(addresses).items():
            self._remembered.pop(peer, None)
            self._remembered[peer] = tuple(map(str, found))
        for peer in list(self._remembered)[:-MAX_REMEMBERED]:
            del self._remembered[peer]

    def wanted(self, roster: Roster) -> Mapping[PeerId, Sequence[str]]:
        """Return the peers to be linked with and their addresses."""
        called = {peer: at for peer, at in self._remembered.items() if not roster.addresses(peer)}
        heard_of = (*roster.lost(), *roster.neighbours())
        return called | {peer: roster.addresses(peer) for peer in heard_of}

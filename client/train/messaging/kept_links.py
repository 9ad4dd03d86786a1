"""The peers that the network keeps dialling: neighbours, and peers that may come back.

A dead neighbour, a partition that heals and a swarm that restarts look alike from here: one side
has to dial again. So recently lost peers are dialled, and for ever those that the last session or
the invite names, and those met since, until a record of them arrives. The network applies backoff.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from protocol.address import Address, by_peer
from protocol.ids import PeerId
from protocol.membership.roster import Roster

MAX_MET: Final = 32


class KeptLinks:
    """Addresses by peer, known before the roster knows anybody.

    Args:
        named: by the last session or the invite.
    """

    def __init__(self, named: Iterable[Address] = ()) -> None:
        self._named = by_peer(named)
        self.met: dict[PeerId, list[Address]] = {}
        """Addresses in reach of the members that answered lately."""

    def meet(self, addresses: Iterable[Address]) -> None:
        """Remember members that answered, the best first; of too many those not met for longest are
        dropped, and then the last."""
        met = by_peer(addresses)
        older = {peer: found for peer, found in self.met.items() if peer not in met}
        self.met = dict(islice(chain(met.items(), older.items()), MAX_MET))

    def wanted(self, roster: Roster) -> Mapping[PeerId, Sequence[str]]:
        """Return the peers to be linked with and their addresses."""
        wanted: dict[PeerId, Sequence[str]] = {}
        for peer in self._named | self.met:
            if not roster.addresses(peer):
                known = (*self.met.get(peer, ()), *self._named.get(peer, ()))
                wanted[peer] = tuple(dict.fromkeys(map(str, known)))
        for peer in (*roster.lost(), *roster.neighbours()):
            wanted[peer] = roster.addresses(peer)
        return wanted

"""How many messages about reachability a peer may send: each has us look at all candidates anew.

An honest peer says once in a link where it sees us, and asks for and answers a few probes a minute.
State: the budget of each peer; it outlives its links. Pure; the clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocol.effects import Penalise
from protocol.ids import PeerId

BURST: Final = 64
EVERY_S: Final = 1.0
"""So many messages at once, and then one a second."""
PENALTY: Final = 10
MAX_PEERS: Final = 1024


class Patience:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._spent: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()

    def hears(self, peer: PeerId, now: float) -> Penalise | None:
        """Count a message; return the blame if it is one too many, which is then ignored."""
        level, at = self._spent.pop(peer, (0.0, now))
        level = max(0.0, level - (now - at) / EVERY_S)
        too_many = level > BURST - 1
        self._spent[peer] = (level if too_many else level + 1, now)
        while len(self._spent) > MAX_PEERS:
            self._spent.popitem(last=False)
        return Penalise(peer, "reach-flood", PENALTY) if too_many else None

"""How often peers may make us punch, whoever begins.

Each try costs one packet to a place that the peer names, at the host where a relay sees it. Relay
and peer may be in league. So tries are counted for the peer, for the machine that is dialled, and
for all: a storm has the effect of a few packets a minute at any machine. State: the three kinds of
buckets, bounded. Pure; the clock is passed in.
"""

from __future__ import annotations

from typing import Final

from protocol.hosts import machine_of
from protocol.ids import PeerId
from protocol.token_bucket import Rate, TokenBuckets

OF_PEER: Final = Rate(1 / 60, 9)
"""Three attempts of three tries."""
OF_MACHINE: Final = Rate(1 / 30, 12)
"""Several volunteers in one home are legitimate."""
OF_ALL: Final = Rate(1.0, 64)
"""The burst is a swarm whose members meet at once."""
MAX_ENTRIES: Final = 4096


class Allowance:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._tries = TokenBuckets[str](MAX_ENTRIES)

    def grants(self, peer: PeerId, host: str, now: float) -> bool:
        """Whether a try with a peer that a relay sees at ``host`` is fine; if so, it is counted."""
        machine = f"machine {machine_of(host)}"
        return self._tries.take({f"peer {peer}": OF_PEER, machine: OF_MACHINE, "": OF_ALL}, now)

"""What peers may make us do about reachability: budgets for each kind of thing.

Peer ids cost nothing, so budgets are kept for addresses as well. State: the budgets, which outlive
links. Pure; the clock is passed in.

- *Messages*: each has us look at all candidates anew. An honest peer says once in a link where it
  sees us, and asks for and answers a few probes a minute.
- *Dials back*: we dial a member only at the address at which we see it, at the port that it names,
  from a fresh port, and never behind a relay. So nobody else can be reached through us, except
  those who share the asker's address; a request is longer than all that we send for it, so even
  they get fewer bytes than the asker spends.
- *Tries* to punch: each costs one packet to a place that the peer names, at the host where a relay
  sees it. Relay and peer may be in league. A storm has the effect of a few packets a minute at any
  machine.
"""

from typing import Final

from protocol.hosts import is_global, machine_of, prefix_of
from protocol.ids import PeerId
from protocol.token_bucket import Rate, TokenBuckets

MESSAGES: Final = Rate(1.0, 64)
FLOOD_POINTS: Final = 10
DIALS_OF_PREFIX: Final = Rate(1 / 30, 4)
DIALS: Final = Rate(1.0, 16)
TRIES_OF_PEER: Final = Rate(1 / 60, 9)
"""Three attempts of three tries."""
TRIES_OF_MACHINE: Final = Rate(1 / 30, 12)
"""Several volunteers in one home are legitimate."""
TRIES: Final = Rate(1.0, 64)
"""The burst is a swarm whose members meet at once."""
MAX_ENTRIES: Final = 4096


class Budgets:
    """See the module's docstring. Each method counts what it grants."""

    def __init__(self) -> None:
        self._buckets = TokenBuckets[str](MAX_ENTRIES)

    def hears(self, peer: PeerId, now: float) -> bool:
        """Whether to take a message of a peer."""
        return self._buckets.take({f"says {peer}": MESSAGES}, now)

    def dials_back(self, host: str, now: float) -> bool:
        """Whether to dial a member that we see at a host."""
        rates = {f"dials {prefix_of(host)}": DIALS_OF_PREFIX, "dials": DIALS}
        return is_global(host) and self._buckets.take(rates, now)

    def tries(self, peer: PeerId, host: str, now: float) -> bool:
        """Whether to try with a peer that a relay sees at ``host``."""
        machine = f"tries at {machine_of(host)}"
        rates = {f"tries {peer}": TRIES_OF_PEER, machine: TRIES_OF_MACHINE, "tries": TRIES}
        return self._buckets.take(rates, now)

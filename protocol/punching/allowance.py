"""How often peers may make us punch, whoever begins.

Each try costs one packet to a place that the peer names, at the host where a relay sees it. Relay
and peer may be in league. So tries are counted for the peer, for the machine that is dialled, and
for all: a storm has the effect of a few packets a minute at any machine. State: the three kinds of
levels, bounded. Pure; the clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from protocol.hosts import machine_of
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Rate:
    """So many tries at once, and then one in ``every_s`` seconds."""

    burst: int
    every_s: float


OF_PEER: Final = Rate(9, 60.0)
"""Three attempts of three tries."""
OF_MACHINE: Final = Rate(12, 30.0)
"""Several volunteers in one home are legitimate."""
OF_ALL: Final = Rate(64, 1.0)
"""The burst is a swarm whose members meet at once."""
MAX_ENTRIES: Final = 4096


class Allowance:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def grants(self, peer: PeerId, host: str, now: float) -> bool:
        """Whether a try with a peer that a relay sees at ``host`` is fine; if so, it is counted."""
        keys = {f"peer {peer}": OF_PEER, f"machine {machine_of(host)}": OF_MACHINE, "": OF_ALL}
        levels = {key: self._level(key, rate, now) for key, rate in keys.items()}
        if any(levels[key] > rate.burst - 1 for key, rate in keys.items()):
            return False
        for key, level in levels.items():
            self._levels[key] = (level + 1, now)
            self._levels.move_to_end(key)
        while len(self._levels) > MAX_ENTRIES:
            self._levels.popitem(last=False)
        return True

    def _level(self, key: str, rate: Rate, now: float) -> float:
        level, at = self._levels.get(key, (0.0, now))
        return max(0.0, level - (now - at) / rate.every_s)

"""A peer's reputation on this machine: one number in [0, 1] with its reason in words.

It is this volunteer's opinion and is shown to its user. It never enters the matching, where all
members must compute with the same numbers; there a false claim is corrected instead.

Every observation x with weight w pulls the score: s' = s + (1 - exp(-w)) (x - s). Time pulls it
back to one half. Bounded: the peers observed longest ago are forgotten first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId

NEUTRAL: Final = 0.5
HALF_LIFE_S: Final = 3600.0
MAX_PEERS: Final = 4096
LIE_WEIGHT: Final = 1.0
KEPT_WEIGHT: Final = 0.1
POINTS_WEIGHT: Final = 0.02
"""Per penalty point: 50 points weigh as much as a lie."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A score, the monotonic seconds of its last observation, and the reason in words."""

    score: float = NEUTRAL
    at: float = 0.0
    words: str = "nothing known"

    def now(self, now: float) -> float:
        """Return the score as decayed by ``now`` (monotonic seconds)."""
        faded: float = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        return NEUTRAL + (self.score - NEUTRAL) * faded

    def pulled(self, deserved: float, weight: float, words: str, now: float) -> Standing:
        """Return the standing after one observation.

        Args:
            deserved: the score that the observation alone would give, 0 to 1.
            weight: of the observation; each unit closes 63 % of the distance.
            words: the reason.
            now: monotonic seconds.
        """
        before = self.now(now)
        return Standing(before + (1 - math.exp(-weight)) * (deserved - before), now, words)


class Reputation:
    """Standings of the peers we have an opinion of."""

    def __init__(self) -> None:
        self._standings: dict[PeerId, Standing] = {}

    def overstated(self, peer: PeerId, factor: float, now: float) -> Standing:
        """Note at ``now`` that ``peer`` claims ``factor`` times what its partners measured."""
        words = f"claims {factor:.1f} times what its partners measured"
        return self._pull(peer, 1 / max(1.0, factor), LIE_WEIGHT, words, now)

    def kept(self, peer: PeerId, now: float) -> Standing:
        """Note at ``now`` that partners measured about what ``peer`` claims."""
        return self._pull(peer, 1.0, KEPT_WEIGHT, "does what it claims", now)

    def broke(self, peer: PeerId, reason: str, points: int, now: float) -> Standing:
        """Note at ``now`` that ``peer`` broke a rule: ``reason``, worth penalty ``points``."""
        return self._pull(peer, 0.0, POINTS_WEIGHT * points, f"broke a rule: {reason}", now)

    def of(self, peer: PeerId) -> Standing:
        """Return a peer's standing."""
        return self._standings.get(peer, Standing())

    def _pull(
        self, peer: PeerId, deserved: float, weight: float, words: str, now: float
    ) -> Standing:
        before = self._standings.pop(peer, Standing(at=now))
        after = self._standings[peer] = before.pulled(deserved, weight, words, now)
        while len(self._standings) > MAX_PEERS:
            del self._standings[next(iter(self._standings))]
        return after

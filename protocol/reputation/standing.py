"""A peer's reputation here: one number in [0, 1] with the reasons for it in words.

It is an opinion of this volunteer, shown to its user. It never enters the matching, where everybody
has to reckon with the same numbers; what a lie costs there is the corrected value.

Every observation pulls the score towards what it deserves: s' = s + (1 - exp(-w)) (x - s), and time
pulls it back to one half. Bounded: the peers observed longest ago are forgotten first.
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
    """A score, when it was last touched (monotonic seconds) and why."""

    score: float = NEUTRAL
    at: float = 0.0
    words: str = "nothing known"

    def now(self, now: float) -> float:
        """Return the score with the time that has passed."""
        faded: float = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        return NEUTRAL + (self.score - NEUTRAL) * faded

    def pulled(self, deserved: float, weight: float, words: str, now: float) -> Standing:
        """Return the standing after one observation."""
        before = self.now(now)
        return Standing(before + (1 - math.exp(-weight)) * (deserved - before), now, words)


class Reputation:
    """Standings of the peers we have an opinion of."""

    def __init__(self) -> None:
        self._standings: dict[PeerId, Standing] = {}

    def overstated(self, peer: PeerId, factor: float, now: float) -> Standing:
        """It claims ``factor`` times what its partners measured."""
        words = f"claims {factor:.1f} times what its partners measured"
        return self._pull(peer, 1 / max(1.0, factor), LIE_WEIGHT, words, now)

    def kept(self, peer: PeerId, now: float) -> Standing:
        """Partners measured about what it claims."""
        return self._pull(peer, 1.0, KEPT_WEIGHT, "does what it claims", now)

    def broke(self, peer: PeerId, reason: str, points: int, now: float) -> Standing:
        """It broke a rule of the protocol."""
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

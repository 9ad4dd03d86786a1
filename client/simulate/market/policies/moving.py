"""Policies of published systems that move volunteers: SWARM (arXiv 2301.11913) and Petals.

SWARM, section 3.2: every T seconds one peer of the stage with most to spare moves to the one with
least. Petals: every server asks now and then whether the throughput would rise if it moved to the
weakest place, and moves if the present throughput is below a threshold times the new one.
"""

from __future__ import annotations

import numpy as np

from client.simulate.market.policies.joining import Joining
from client.simulate.market.policies.policy import Market

PETALS_CHECK_S = 120.0
"""Mean time between a server's checks."""
PETALS_TICK_S = 10.0


class Swarm(Joining):
    """One move per period, of any peer of the strongest stage to the weakest.

    ``careful``: only if neither stage ends below the weakest of before (not in the paper, better).
    """

    def __init__(self, market: Market, period_s: float, *, careful: bool) -> None:
        super().__init__(market)
        self._careful = careful
        market.agenda.at(period_s, lambda: market.agenda.every(period_s, self._rebalance))

    def _rebalance(self) -> None:
        market = self.market
        strongest, weakest = int(market.levels.argmax()), int(market.levels.argmin())
        movable = [v for v in market.members(strongest).tolist() if market.settled(v)]
        if self._careful:
            spare = market.levels[strongest] - market.levels[weakest]
            movable = [v for v in movable if market.rates[v, strongest] < spare]
        if strongest != weakest and movable and market.replicas[strongest] > 1:
            market.place(market.agenda.random.choice(movable), weakest)


class Petals(Joining):
    """Everybody checks on its own whether its move to the weakest stage would pay."""

    def __init__(self, market: Market, quality: float) -> None:
        super().__init__(market)
        self._quality = quality
        self._random = np.random.default_rng(market.agenda.random.getrandbits(64))
        market.agenda.every(PETALS_TICK_S, self._check)

    def _check(self) -> None:
        """Let those whose turn it is look, one after the other, so that none herds."""
        market = self.market
        servers = np.flatnonzero(market.home >= 0)
        turns = servers[self._random.random(len(servers)) < PETALS_TICK_S / PETALS_CHECK_S]
        for volunteer in turns.tolist():
            weakest = int(market.levels.argmin())
            if self._pays(volunteer, weakest) and market.settled(volunteer):
                market.place(volunteer, weakest)

    def _pays(self, volunteer: int, weakest: int) -> bool:
        levels, home = self.market.levels, int(self.market.home[volunteer])
        if home == weakest:
            return False
        moved = levels.copy()
        moved[home] -= self.market.rates[volunteer, home]
        moved[weakest] += self.market.rates[volunteer, weakest]
        return bool(levels.min() < self._quality * moved.min())

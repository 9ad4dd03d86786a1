"""Policies of published systems that move volunteers: SWARM (arXiv 2301.11913) and Petals.

SWARM, section 3.2: every T seconds one peer of the stage with most to spare moves to the one with
least. Petals: every server imagines now and then that it moves to the weakest place and all others
after it until nobody wants to; it moves if the present throughput is below a threshold times that
of the imagined swarm.
"""

import numpy as np

from client.lab.simulate.market.nature import Ints
from client.lab.simulate.market.policies.joining import Joining
from client.lab.simulate.market.policies.policy import Market

PETALS_CHECK_S = 120.0
"""Mean time between a server's checks."""
PETALS_TICK_S = 10.0
PETALS_SWEEPS = 10


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
    """Each volunteer checks on its own whether its move to the weakest stage would pay."""

    def __init__(self, market: Market, quality: float) -> None:
        super().__init__(market)
        self._quality = quality
        self._random = np.random.default_rng(market.agenda.random.getrandbits(64))
        market.agenda.every(PETALS_TICK_S, self._check)

    def _check(self) -> None:
        """Let the volunteers whose turn it is check one after the other, which avoids herding."""
        market = self.market
        servers = np.flatnonzero(market.home >= 0)
        turns = servers[self._random.random(len(servers)) < PETALS_TICK_S / PETALS_CHECK_S]
        if len(turns) == 0:
            return
        # The order makes little difference, so one imagined swarm serves all checks of a moment.
        goal = self._quality * self._imagined(self._random.permutation(servers))
        for volunteer in turns.tolist():
            if market.levels.min() < goal and market.settled(volunteer):
                stage = _weakest_without(market, volunteer, market.levels)
                if stage is not None:
                    market.place(volunteer, stage)

    def _imagined(self, servers: Ints) -> int:
        """Return the throughput after all imagined moves."""
        market = self.market
        levels, home = market.levels.copy(), market.home.copy()
        for _ in range(PETALS_SWEEPS):
            moved = False
            for volunteer in servers.tolist():
                stage = _weakest_without(market, volunteer, levels, int(home[volunteer]))
                if stage is not None:
                    levels[home[volunteer]] -= market.rates[volunteer, home[volunteer]]
                    levels[stage] += market.rates[volunteer, stage]
                    home[volunteer], moved = stage, True
            if not moved:
                break
        return int(levels.min())


def _weakest_without(
    market: Market, volunteer: int, levels: Ints, home: int | None = None
) -> int | None:
    """Return the weakest stage if a volunteer were not there, None if that is its own or it must
    not leave it empty."""
    at = int(market.home[volunteer]) if home is None else home
    left = int(levels[at] - market.rates[volunteer, at])
    weakest = int(levels.argmin())
    return weakest if left > 0 and weakest != at and levels[weakest] < left else None

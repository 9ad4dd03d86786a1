"""The omniscient planner: sees every crash at once, plans for all, pays only for the downloads.

The upper reference for one stage per volunteer. No swarm of strangers could run it.
"""

from __future__ import annotations

import numpy as np

from client.lab.simulate.market.nature import Ints
from client.lab.simulate.market.policies.joining import ByValue
from client.lab.simulate.market.policies.policy import NOWHERE, Market
from client.lab.simulate.market.search import Crew, Plan, anneal
from client.lab.simulate.market.setting import STEP_S

TICK_S = 10.0
HORIZON_S = 1800.0
FOUNDING_STEPS = 40
STEPS = 3
"""Once moves take time, few at a time are best: each changes the value of the next. Swaps are
planned in the first step only, because the first to arrive leaves a gap behind."""
FOUNDING_MOVE_COST = 5e-4
MOVE_COST = 5e-3
"""A plan has to lift the lowest level by this share of the mean for each of its moves."""


class Annealing(ByValue):
    """Newcomers go where they are worth most, then annealing over all places."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self._random = np.random.default_rng(market.agenda.random.getrandbits(64))
        self._due = True
        market.agenda.every(TICK_S, self._plan)

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage, then plan again."""
        super().loaded(volunteer, stage)
        self._due = True

    def _plan(self) -> None:
        self._see_crashes()
        if self._due:
            self._due = self._improve()

    def _see_crashes(self) -> None:
        market = self.market
        for volunteer in np.flatnonzero(market.believed).tolist():
            if not market.fleet.present(volunteer):
                market.believe(volunteer, False)
                self._due = True

    def _improve(self) -> bool:
        """Adopt a plan that is worth its moves; tell whether there was one."""
        market = self.market
        there = np.flatnonzero(market.home != NOWHERE)
        if len(there) == 0:
            return False
        crew = self._crew(there)
        now = Plan(market.home[there].copy(), market.levels.astype(float))
        found = anneal(crew, now, FOUNDING_STEPS if crew.swaps else STEPS, self._random)
        moved = np.flatnonzero(found.home != now.home)
        if len(moved) == 0:
            return False
        gain = (found.levels.min() - now.levels.min()) * crew.haste[moved].min()
        cost = FOUNDING_MOVE_COST if crew.swaps else MOVE_COST
        if gain < cost * len(moved) * max(now.levels.mean(), 1.0):
            return False
        for index in moved.tolist():
            market.place(int(there[index]), int(found.home[index]))
        return True

    def _crew(self, there: Ints) -> Crew:
        market = self.market
        settled = np.array([market.settled(v) for v in there.tolist()])
        fetch_s = [market.nature.fetch_s(v, market.agenda.now) for v in there.tolist()]
        haste = np.maximum(1.0 - np.array(fetch_s) / HORIZON_S, 0.0)
        rates = market.rates[there].astype(float)
        founding = market.agenda.now < STEP_S
        return Crew(rates, np.flatnonzero(settled & (haste > 0)), haste, swaps=founding)

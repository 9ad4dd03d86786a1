"""Plain deferred acceptance with static preferences, the textbook's: the wrong tool here.

Volunteers rank stages by their own rate there, stages rank volunteers by that rate, every stage has
n / S places, rounded up. Volunteers with a place are not asked again; newcomers apply for free
places.
"""

from __future__ import annotations

import numpy as np

from client.lab.simulate.market.policies.joining import Joining
from client.lab.simulate.market.policies.policy import NOWHERE, Market
from client.lab.simulate.market.setting import ARRIVAL_S


class StaticStable(Joining):
    """Deferred acceptance of all founders once they are present, then of each newcomer."""

    def __init__(self, market: Market) -> None:
        super().__init__(market)
        self._quota = -(-market.nature.setting.volunteers // market.stages)
        self._open = False
        market.agenda.at(ARRIVAL_S, self._found)

    def joined(self, volunteer: int) -> None:
        """Take note of a founder, place a newcomer."""
        self.market.believe(volunteer, True)
        if self._open:
            self._match([volunteer])

    def _found(self) -> None:
        self._open = True
        self._match(np.flatnonzero(self.market.believed).tolist())

    def _match(self, free: list[int]) -> None:
        """Gale-Shapley; a volunteer rejected everywhere waits for a departure."""
        market = self.market
        room = [self._quota - len(market.members(stage)) for stage in range(market.stages)]
        wishes = {v: np.argsort(-market.rates[v], kind="stable").tolist() for v in free}
        held: list[list[int]] = [[] for _ in room]
        while free:
            volunteer = free.pop()
            if not wishes[volunteer]:
                continue
            stage = wishes[volunteer].pop(0)
            held[stage].append(volunteer)
            if len(held[stage]) > room[stage]:
                worst = min(held[stage], key=lambda v: market.rates[v, stage])
                held[stage].remove(worst)
                free.append(worst)
        for stage, kept in enumerate(held):
            for volunteer in kept:
                market.place(volunteer, stage)

    def departed(self, volunteer: int) -> None:
        """Give the place to a volunteer without one."""
        super().departed(volunteer)
        waiting = np.flatnonzero(self.market.believed & (self.market.home == NOWHERE))
        if self._open and len(waiting):
            self._match(waiting.tolist())

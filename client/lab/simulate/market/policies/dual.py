"""Dual homing on top of another policy: the faster volunteers also hold an adjacent stage."""

import numpy as np

from client.lab.simulate.market.policies.joining import ByValue, gain
from client.lab.simulate.market.policies.moving import Petals
from client.lab.simulate.market.policies.policy import NOWHERE, Market

FAST_SHARE = 0.4


class DualByValue(ByValue):
    """Best value at joining, then the better neighbour as second stage."""

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage; fast volunteers take a neighbouring one too."""
        super().loaded(volunteer, stage)
        take_second(self.market, volunteer)


class DualPetals(Petals):
    """Petals' moves with second stages; a move gives the second stage up for another."""

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage; fast volunteers take a neighbouring one too."""
        super().loaded(volunteer, stage)
        take_second(self.market, volunteer)


def take_second(market: Market, volunteer: int) -> None:
    """Give a volunteer that is settled and among the fastest the neighbour that needs it most."""
    if not market.settled(volunteer) or market.second[volunteer] != NOWHERE:
        return
    if not _fast(market, volunteer):
        return
    home = int(market.home[volunteer])
    neighbours = [s for s in (home - 1, home + 1) if 0 <= s < market.stages]
    values = gain(market, volunteer)
    if neighbours:
        market.place_second(volunteer, max(neighbours, key=lambda s: float(values[s])))


def _fast(market: Market, volunteer: int) -> bool:
    best = market.rates.max(axis=1)
    return bool(best[volunteer] >= np.quantile(best[market.believed], 1 - FAST_SHARE))

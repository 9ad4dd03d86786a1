"""Policies that place newcomers and never move volunteers: random, weakest stage, best value."""

import numpy as np

from client.lab.simulate.market.nature import Floats
from client.lab.simulate.market.policies.policy import Market

REDUNDANCY = 2
MAX_SESSION_S = 1800.0


class Joining:
    """Places newcomers by ``choose``; the base of the other baselines."""

    said = None

    def __init__(self, market: Market) -> None:
        self.market = market

    def joined(self, volunteer: int) -> None:
        """Place a newcomer."""
        self.market.believe(volunteer, True)
        self.market.place(volunteer, self.choose(volunteer))

    def departed(self, volunteer: int) -> None:
        """Forget a volunteer."""
        self.market.believe(volunteer, False)

    def loaded(self, volunteer: int, stage: int) -> None:
        """Serve a fetched stage."""
        self.market.loaded(volunteer, stage)

    def choose(self, volunteer: int) -> int:
        """Return the stage for a newcomer: the weakest."""
        return int(self.market.levels.argmin())


class Random(Joining):
    """Any stage."""

    def choose(self, volunteer: int) -> int:
        """Return any stage."""
        return self.market.agenda.random.randrange(self.market.stages)


class ByValue(Joining):
    """The stage where the newcomer is worth most: the matching's u_v(s), coverage first, with
    perfect loads."""

    def choose(self, volunteer: int) -> int:
        """Return the stage of the highest utility."""
        market = self.market
        needy = market.replicas < REDUNDANCY
        value = gain(market, volunteer)
        return int(np.where(needy, value + value.max() + 1.0, value).argmax())


def gain(market: Market, volunteer: int) -> Floats:
    """Return c phi / (L + c)^2 for every stage (S,)."""
    rates = market.rates[volunteer].astype(float)
    phi = np.exp(-market.nature.download_s[volunteer] / MAX_SESSION_S)
    worth: Floats = rates * phi / np.maximum(market.levels + rates, 1.0) ** 2
    return worth

"""Every policy by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from client.lab.simulate.agenda import Agenda
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.design import FULL, Design
from client.lab.simulate.market.fleet import Fleet
from client.lab.simulate.market.nature import Nature
from client.lab.simulate.market.policies.annealing import Annealing
from client.lab.simulate.market.policies.dual import DualByValue, DualPetals
from client.lab.simulate.market.policies.joining import ByValue, Joining, Random
from client.lab.simulate.market.policies.moving import Petals, Swarm
from client.lab.simulate.market.policies.policy import Market, Policy
from client.lab.simulate.market.policies.stable import StaticStable
from client.lab.simulate.market.run import Seat

BASELINES: dict[str, Callable[[Market], Policy]] = {
    "random": Random,
    "greedy-join": Joining,
    "swarm-300": lambda market: Swarm(market, 300.0, careful=False),
    "swarm-60": lambda market: Swarm(market, 60.0, careful=True),
    "swarm-30": lambda market: Swarm(market, 30.0, careful=True),
    "petals-0.75": lambda market: Petals(market, 0.75),
    "petals-0.95": lambda market: Petals(market, 0.95),
    "gale-shapley-static": StaticStable,
    "value-join": ByValue,
    "value-join-dual": DualByValue,
    "petals-dual": lambda market: DualPetals(market, 0.95),
    "annealing": Annealing,
}
DESIGNS: dict[str, Design] = {
    "ours": FULL,
    "ours-no-dual": Design(dual_homing=False),
    "ours-no-moves": Design(moves=False),
}
POLICIES = (*DESIGNS, *BASELINES)


def seat(name: str) -> Seat:
    """Return the factory of a policy by name; raises ``KeyError``."""
    if name in DESIGNS:
        return partial(Crowd, design=DESIGNS[name])
    baseline = BASELINES[name]

    def make(nature: Nature, agenda: Agenda, fleet: Fleet) -> Policy:
        return baseline(Market(nature, agenda, fleet))

    return make

"""Every policy by name, and the figures of several in one and the same world."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from client.lab.simulate.market.bounds import oracle
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.nature import Nature
from client.lab.simulate.market.policies.dual import DualByValue, DualPetals
from client.lab.simulate.market.policies.joining import ByValue, Joining, Random
from client.lab.simulate.market.policies.moving import Petals, Swarm
from client.lab.simulate.market.policies.policy import MakePolicy
from client.lab.simulate.market.run import play
from client.lab.simulate.market.score import Figures, score

POLICIES: dict[str, MakePolicy] = {
    "ours": Crowd,
    "random": Random,
    "greedy-join": Joining,
    "swarm-300": lambda market: Swarm(market, 300.0, careful=False),
    "swarm-60": lambda market: Swarm(market, 60.0, careful=True),
    "swarm-30": lambda market: Swarm(market, 30.0, careful=True),
    "petals-0.75": lambda market: Petals(market, 0.75),
    "petals-0.95": lambda market: Petals(market, 0.95),
    "value-join": ByValue,
    "value-join-dual": DualByValue,
    "petals-dual": lambda market: DualPetals(market, 0.95),
}
Progress = Callable[[str, float], object]
"""Called with the name of the simulated policy and the share done."""


def compare(
    nature: Nature, policies: Sequence[str], progress: Progress | None = None
) -> Iterator[Figures]:
    """Yield the figures of policies, in order, as they are ready."""
    if progress:
        progress("bounds", 0.0)
    bounds = oracle(nature)
    for name in policies:
        told = partial(progress, name) if progress else None
        yield score(name, nature, bounds, play(nature, POLICIES[name], told))

"""Runs policies in one and the same world and returns their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from client.lab.simulate.market.bounds import Oracle, oracle
from client.lab.simulate.market.catalogue import seat
from client.lab.simulate.market.nature import Nature
from client.lab.simulate.market.run import play
from client.lab.simulate.market.score import Figures, score

Progress = Callable[[str, float], object]
"""Called with the name of the simulated policy and the share done."""


def compare(
    nature: Nature, policies: Sequence[str], progress: Progress | None = None
) -> Iterator[Figures]:
    """Yield the figures of every policy, in order, as they are ready."""
    if progress:
        progress("bounds", 0.0)
    bounds: Oracle = oracle(nature)
    for name in policies:
        told = partial(progress, name) if progress else None
        yield score(name, nature, bounds, play(nature, seat(name), told))

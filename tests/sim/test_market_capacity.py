"""Throughput of what is served: exact for one stage each, optimal for those that hold two."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from client.lab.simulate.market.capacity import TOLERANCE, Capacity
from client.lab.simulate.market.nature import Nature, draw
from client.lab.simulate.market.setting import Setting


def _swarm(stages: int, seed: int = 0) -> Nature:
    return draw(Setting(12, stages, seed=seed))


@pytest.mark.parametrize("seed", range(12))
def test_the_split_is_the_best_there_is(seed: int) -> None:
    """Between the best of random splits and the bound by the best of many prices."""
    nature = _swarm(3, seed)
    random = np.random.default_rng(seed)
    capacity, held = Capacity(nature), []
    for volunteer in range(9):
        stages = ((0,), (1,), (2,), (0, 1), (1, 2))[
            random.integers(5) if volunteer > 3 else 4 - volunteer
        ]
        held.append(stages)
        capacity.serve(volunteer, stages)
    found = capacity.throughput()
    assert found >= max(_split(nature, held, random) for _ in range(300)) * (1 - TOLERANCE)
    assert found <= _price_bound(nature, held) * (1 + TOLERANCE)
    assert found >= _price_bound(nature, held) * 0.98


def _rate(nature: Nature, volunteer: int, stages: tuple[int, ...], stage: int) -> int:
    rates = nature.dual_rates if len(stages) == 2 else nature.rates
    return int(rates[volunteer, stage])


def _split(nature: Nature, held: list[tuple[int, ...]], random: np.random.Generator) -> float:
    levels = np.zeros(3)
    for volunteer, stages in enumerate(held):
        shares = (1.0,) if len(stages) == 1 else (x := random.random(), 1 - x)
        for stage, share in zip(stages, shares, strict=True):
            levels[stage] += share * _rate(nature, volunteer, stages, stage)
    return float(levels.min())


def _price_bound(nature: Nature, held: list[tuple[int, ...]]) -> float:
    grid = np.arange(0, 1.0001, 0.01)
    return min(
        sum(
            max(prices[s] * _rate(nature, v, stages, s) for s in stages)
            for v, stages in enumerate(held)
        )
        for a, b in itertools.product(grid, grid)
        if a + b <= 1
        for prices in [(a, b, 1 - a - b)]
    )

"""The oracle is a bound: nothing that volunteers could do exceeds it, and it is not far above."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from client.lab.simulate.market.bounds import Prices, oracle, single_bound
from client.lab.simulate.market.nature import Floats, draw
from client.lab.simulate.market.search import Plan, anneal, free
from client.lab.simulate.market.setting import Setting

ONE_OF_EACH = np.array([1, 1, 1])


def _machines(seed: int, count: int) -> Floats:
    """Rates at three stages that differ in kind (n, 3)."""
    random = np.random.default_rng(seed)
    return np.minimum(
        np.exp(0.8 * random.standard_normal((count, 1))) / np.array([1.0, 1.0, 1.25]),
        np.exp(0.8 * random.standard_normal((count, 1))) / np.array([0.25, 0.5, 0.25]),
    )


def _best_single(rates: Floats) -> float:
    """Try every assignment of one stage to each."""
    count, stages = rates.shape
    rows = np.arange(count)
    return max(
        np.bincount(choice, weights=rates[rows, list(choice)], minlength=stages).min()
        for choice in itertools.product(range(stages), repeat=count)
    )


def _strongest_first(rates: Floats) -> Plan:
    """A plan to begin with: the strongest first, each at the weakest stage."""
    plan = Plan(np.zeros(len(rates), dtype=np.int64), np.zeros(rates.shape[1]))
    for volunteer in np.argsort(-rates.max(axis=1), kind="stable").tolist():
        stage = int(plan.levels.argmin())
        plan.home[volunteer] = stage
        plan.levels[stage] += rates[volunteer, stage]
    return plan


@pytest.mark.parametrize("seed", range(8))
def test_no_assignment_exceeds_the_single_bound(seed: int) -> None:
    rates = _machines(seed, 7)
    lp = Prices(ONE_OF_EACH).bound(rates)
    single = single_bound(rates, lp, Prices(ONE_OF_EACH))
    assert _best_single(rates) <= single * (1 + 1e-9)
    assert single <= lp


def test_a_planner_comes_close_to_the_bound_of_a_large_swarm() -> None:
    nature = draw(Setting(500, 8, seed=1))
    bounds = oracle(nature)
    rates = nature.rates.astype(float)
    plan = anneal(free(rates), _strongest_first(rates), 200, np.random.default_rng(0))
    assert 0.95 * bounds.single[-1] <= plan.levels.min() <= bounds.single[-1]

"""The oracle is a bound: nothing that volunteers could do exceeds it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from client.lab.simulate.market.bounds import Prices, single_bound
from client.lab.simulate.market.nature import Floats

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


@pytest.mark.parametrize("seed", range(8))
def test_no_assignment_exceeds_the_single_bound(seed: int) -> None:
    rates = _machines(seed, 7)
    lp = Prices(ONE_OF_EACH).bound(rates)
    single = single_bound(rates, lp, Prices(ONE_OF_EACH))
    assert _best_single(rates) <= single * (1 + 1e-9)
    assert single <= lp

"""The market's oracle is a bound: nothing that volunteers could do exceeds it, and no policy does;
the real machines cover every stage, and come near it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from client.lab.simulate.market.bounds import Prices, oracle, single_bound
from client.lab.simulate.market.catalogue import POLICIES
from client.lab.simulate.market.crowd import Crowd
from client.lab.simulate.market.nature import Floats, draw
from client.lab.simulate.market.policies.policy import Market
from client.lab.simulate.market.run import play
from client.lab.simulate.market.score import score
from client.lab.simulate.market.setting import Setting

ONE_OF_EACH = np.array([1, 1, 1])
SINGLE = [name for name in POLICIES if name != "ours" and "dual" not in name]


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


@pytest.mark.parametrize("name", SINGLE)
def test_no_policy_of_one_stage_each_exceeds_the_bound_at_any_moment(name: str) -> None:
    nature = draw(Setting(40, 6, 0.5, hours=1.5, seed=4))
    # Reckoned at the moments of observation: both see the same volunteers.
    bounds = oracle(nature)
    record = play(nature, POLICIES[name])
    _, single = bounds.at(record.times_s)
    assert (record.throughput <= single * (1 + 1e-6) + 1).all()
    assert record.throughput.max() > 0 or name in ("random", "gale-shapley-static")


def test_machines_cover_every_stage_and_use_what_there_is() -> None:
    nature, crowds = draw(Setting(16, 4, hours=0.15, seed=1)), list[Crowd]()

    def make(market: Market) -> Crowd:
        crowds.append(Crowd(market))
        return crowds[0]

    record = play(nature, make)
    assert not record.empty[record.times_s > 120].any()
    figures = score("ours", nature, oracle(nature), record)
    assert figures.share > 0.5
    assert figures.talk is not None
    assert figures.talk.letters > 0
    assert crowds[0].said.penalties == 0

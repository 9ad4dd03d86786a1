"""The oracle: the throughput that no assignment can exceed, were moves free.

Pure. By LP duality: let x_vs be the share of its time that v spends on s, then for any prices
p >= 0 with sum 1 the lowest stage has

    L  <=  sum_s p_s sum_v x_vs c_vs  <=  sum_v max_s p_s c_vs.

Any prices give a bound, so the search for good ones may stop at any time. Stages that cost the same
have the same price at the optimum, hence one price per *kind* of stage.

That lets all volunteers share their time among all stages. The bound for one stage a volunteer is
tighter: there c_vs may be capped at L, because more than L helps no stage to reach L.
"""

from dataclasses import dataclass

import numpy as np

from client.lab.simulate.market.nature import Floats, Ints, Nature

COLD_STEPS = 60
WARM_STEPS = 12
CAP_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Oracle:
    """The bound as a step function: from ``times_s[i]`` on it is ``bounds[i]``."""

    times_s: Floats
    bounds: Floats

    def at(self, times_s: Floats) -> Floats:
        """Return the bound at some moments."""
        index = np.maximum(np.searchsorted(self.times_s, times_s, side="right") - 1, 0)
        return self.bounds[index]


class Prices:
    """The search for prices by multiplicative weights; remembers them for the next instant."""

    def __init__(self, stages_of_kind: Ints) -> None:
        self._many = stages_of_kind.astype(float)  # (K,)
        self._prices = np.full(len(stages_of_kind), 1.0 / self._many.sum())
        self._cold = True

    def bound(self, rates: Floats) -> float:
        """Return an upper bound of the lowest level for the c of some volunteers (n, K)."""
        steps = COLD_STEPS if self._cold else WARM_STEPS
        size = 0.3 if self._cold else 0.03
        self._cold = False
        best, found = np.inf, self._prices
        prices = self._prices
        for step in range(steps):
            value, supply = self._evaluate(rates, prices)
            if value < best:
                best, found = value, prices
            if value <= 0:
                return 0.0
            drift = size / (1 + step / 4) * (supply / self._many / value - 1.0)
            prices = prices * np.exp(-np.clip(drift, -1.0, 1.0))
            prices = prices / (prices @ self._many)
        self._prices = found
        return best

    def _evaluate(self, rates: Floats, prices: Floats) -> tuple[float, Floats]:
        """Return the bound at some prices, and the supply of each kind (K,)."""
        worth = rates * prices
        choice = worth.argmax(axis=1)
        rows = np.arange(len(rates))
        supply = np.array([rates[choice == kind, kind].sum() for kind in range(len(prices))])
        return float(worth[rows, choice].sum()), supply


def single_bound(rates: Floats, lp: float, prices: Prices) -> float:
    """Return the largest L that volunteers with c capped at L could reach, below ``lp``."""
    if rates.max() <= lp:
        return lp  # no volunteer alone fills a stage: the cap has no effect
    low, high = 0.0, lp
    while high - low > CAP_TOLERANCE * lp:
        middle = (low + high) / 2
        if prices.bound(np.minimum(rates, middle)) >= middle:
            low = middle
        else:
            high = middle
    return high


def oracle(nature: Nature) -> Oracle:
    """Return the bound over time, computed again where the population has changed: at most every
    2 s, less often for large swarms, in which one volunteer more or less matters less."""
    step_s = max(2.0, nature.setting.volunteers / 250)
    _, kind_of_stage = nature.kinds
    many = np.bincount(kind_of_stage)
    free, capped = Prices(many), Prices(many)
    rates = nature.kind_rates.astype(float)
    times, bounds = [0.0], [0.0]
    for at_s in _moments(nature, step_s):
        alive = rates[nature.alive(at_s)]
        lp = free.bound(alive) if len(alive) else 0.0
        times.append(at_s)
        bounds.append(single_bound(alive, lp, capped) if lp else 0.0)
    return Oracle(np.array(times), np.array(bounds))


def _moments(nature: Nature, step_s: float) -> list[float]:
    """Return the ends of the intervals of ``step_s`` in which a volunteer joins or leaves."""
    changes = np.concatenate([nature.joins_s, nature.leaves_s])
    changes = changes[changes < nature.horizon_s]
    return sorted({float(np.ceil(at_s / step_s) * step_s) for at_s in changes})

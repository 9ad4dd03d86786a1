"""The stages served at this time, and the resulting throughput.

State: each volunteer's stages. Throughput is the lowest level over the stages. A volunteer with two
adjacent stages splits its time between them so that the lowest level is highest, which is what
max-weight scheduling tends to. Rates are integers (micro-microbatches per second), so sums stay
exact over any number of changes.
"""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from client.lab.simulate.market.nature import Ints, Nature

TOLERANCE = 1e-4
"""Relative accuracy of the throughput of dual-homed swarms (found by bisection)."""


class Capacity:
    """Serving volunteers and their time, stage by stage."""

    def __init__(self, nature: Nature) -> None:
        self._nature = nature
        self._rates, self._dual_rates = nature.rates, nature.dual_rates
        self._stages = nature.setting.stages
        self._serving: dict[int, tuple[int, ...]] = {}
        self._base = [0] * self._stages
        self._replicas = [0] * self._stages
        self._pairs = [_Pair() for _ in range(self._stages - 1)]
        self._last = 0.0

    def serving(self, volunteer: int) -> tuple[int, ...]:
        """Return the stages a volunteer serves."""
        return self._serving.get(volunteer, ())

    @property
    def replicas(self) -> list[int]:
        """Serving volunteers of every stage."""
        return self._replicas

    def serve(self, volunteer: int, stages: Iterable[int]) -> None:
        """Replace the stages of a volunteer."""
        old, new = self.serving(volunteer), tuple(stages)
        self._count(volunteer, old, -1)
        self._count(volunteer, new, +1)
        if new:
            self._serving[volunteer] = new
        else:
            self._serving.pop(volunteer, None)

    def throughput(self) -> float:
        """Return the lowest level that some split of the dual-homed volunteers' time reaches."""
        if not any(self._pairs):
            return float(min(self._base))
        if min(self._replicas) == 0:
            return 0.0
        low, high = 0.0, self._ceiling()
        if low < self._last <= high:
            low, high = self._around(self._last, high)
        while high - low > TOLERANCE * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._reaches(middle) else (low, middle)
        self._last = low
        return low

    def _count(self, volunteer: int, stages: tuple[int, ...], sign: int) -> None:
        for stage in stages:
            self._replicas[stage] += sign
        if len(stages) == 2 and abs(stages[0] - stages[1]) == 1:
            left = min(stages)
            here, there = self._dual_rates[volunteer, left : left + 2].tolist()
            self._pairs[left].change(volunteer, here, there, sign)
        elif stages:
            # Two stages that are not adjacent: only while a move is under way; the newest counts.
            self._base[stages[-1]] += sign * int(self._rates[volunteer, stages[-1]])

    def _ceiling(self) -> float:
        """Return a level no stage can exceed if all help it."""
        total = np.array(self._base)
        for stage, pair in enumerate(self._pairs):
            total[stage] += pair.here
            total[stage + 1] += pair.there
        return float(total.min())

    def _around(self, guess: float, high: float) -> tuple[float, float]:
        """Return a narrow bracket: the throughput has mostly not changed since the last moment."""
        above, below = guess * (1 + TOLERANCE), guess * (1 - TOLERANCE)
        if self._reaches(below):
            return (below, high) if above < high and self._reaches(above) else (below, above)
        return 0.0, below

    def _reaches(self, level: float) -> bool:
        """Tell whether every stage can have ``level``; greedy from the left, which is exact: time
        that a pair does not give its left stage is useful only at its right one."""
        carried = 0.0
        for stage, base in enumerate(self._base):
            missing = level - base - carried
            if stage == len(self._pairs):
                return missing <= 0
            pair = self._pairs[stage]
            if missing > pair.here:
                return False
            carried = pair.there - pair.cost_of(missing) if missing > 0 else pair.there
        return True


class _Pair:
    """Volunteers that hold a stage (here) and the next one (there)."""

    def __init__(self) -> None:
        self._members: dict[int, tuple[int, int]] = {}
        self.here = self.there = 0
        self._given: list[int] | None = None
        self._lost: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._members)

    def change(self, volunteer: int, here: int, there: int, sign: int) -> None:
        """Add or remove a volunteer with its rates at the two stages."""
        self.here += sign * here
        self.there += sign * there
        if sign > 0:
            self._members[volunteer] = (here, there)
        else:
            del self._members[volunteer]
        self._given = None

    def cost_of(self, wanted: float) -> float:
        """Return the loss of the right stage if the left one is given ``wanted`` (<= ``here``), by
        the volunteers that lose least: a fractional knapsack."""
        if self._given is None:
            self._sort()
        assert self._given is not None
        index = min(bisect_left(self._given, wanted), len(self._given) - 1)
        last = self._given[index - 1] if index else 0
        share = (wanted - last) / max(self._given[index] - last, 1)
        before = self._lost[index - 1] if index else 0
        return before + share * (self._lost[index] - before)

    def _sort(self) -> None:
        rates = np.array(list(self._members.values()), dtype=np.int64).reshape(-1, 2)
        order = np.argsort(_ratio(rates), kind="stable")
        self._given = np.cumsum(rates[order, 0]).tolist()
        self._lost = np.cumsum(rates[order, 1]).tolist()


def _ratio(rates: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return there / here (m, 2) -> (m,)."""
    ratio: np.ndarray[tuple[int], np.dtype[np.float64]] = rates[:, 1] / np.maximum(rates[:, 0], 1)
    return ratio

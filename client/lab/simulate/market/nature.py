"""Nature: the volunteers, with their times of joining and leaving. The same for every policy.

Immutable. Everything is drawn before a policy acts, so policies are compared under equal conditions
and the oracle is computed once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client.lab.simulate.market import setting as world
from client.lab.simulate.market.setting import Setting
from protocol.manifest import StageCost
from protocol.matching import preferences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Nature:
    """Every volunteer that ever appears, N of them in order of joining; times in seconds."""

    setting: Setting
    joins_s: Floats  # (N,)
    leaves_s: Floats  # (N,), inf: stays
    crashes: Flags  # (N,), whether its departure is a crash
    speed: Floats  # (N,), 1 = median
    bytes_per_s: Floats  # (N,), up and down

    @property
    def count(self) -> int:
        """N."""
        return len(self.joins_s)

    @property
    def horizon_s(self) -> float:
        """Length of the simulated time."""
        return self.setting.horizon_s

    @cached_property
    def costs(self) -> tuple[StageCost, ...]:
        """The cost of every stage."""
        return tuple(self.setting.stage_cost(stage) for stage in range(self.setting.stages))

    @cached_property
    def kinds(self) -> tuple[list[StageCost], Ints]:
        """The distinct stage costs, and the index of each stage's cost (S,)."""
        different = list(dict.fromkeys(self.costs))
        return different, np.array([different.index(cost) for cost in self.costs])

    @cached_property
    def kind_rates(self) -> Ints:
        """c of every volunteer at every kind of stage (N, K), micro-microbatches per second."""
        return self._kind_rates(self.bytes_per_s)

    @cached_property
    def rates(self) -> Ints:
        """c_vs (N, S), micro-microbatches per second."""
        return np.ascontiguousarray(self.kind_rates[:, self.kinds[1]])

    @cached_property
    def dual_rates(self) -> Ints:
        """c_vs of volunteers that hold two stages (N, S); averaging the second takes some link."""
        shares = [
            world.averaging_share(self.setting.parameters_per_stage, link)
            for link in self.bytes_per_s.tolist()
        ]
        left = self.bytes_per_s * (1.0 - np.array(shares))
        return np.ascontiguousarray(self._kind_rates(left)[:, self.kinds[1]])

    @cached_property
    def download_s(self) -> Floats:
        """Seconds to fetch a stage (N,)."""
        cost = self.costs[0]
        return np.array(
            [preferences.download_s(cost, world.STATE, down) for down in self.bytes_per_s.tolist()]
        )

    @cached_property
    def flops(self) -> Floats:
        """Speed in floating point operations per second (N,)."""
        return self.speed * self.setting.median_flops

    def fetch_s(self, volunteer: int, at_s: float) -> float:
        """Return the seconds to fetch a stage; in the first step there is nothing to fetch."""
        return 0.0 if at_s < world.STEP_S else float(self.download_s[volunteer])

    def alive(self, at_s: float) -> Flags:
        """Return which volunteers are present at a moment (N,)."""
        return (self.joins_s <= at_s) & (at_s < self.leaves_s)

    def _kind_rates(self, bytes_per_s: Floats) -> Ints:
        pairs = zip(self.flops.tolist(), bytes_per_s.tolist(), strict=True)
        rows = [[_rate(f, b, cost) for cost in self.kinds[0]] for f, b in pairs]
        return np.array(rows, dtype=np.int64).reshape(self.count, len(self.kinds[0]))


def _rate(flops: float, bytes_per_s: float, cost: StageCost) -> int:
    return preferences.rate((flops, bytes_per_s, bytes_per_s), 4 * cost.memory_bytes, cost)


def draw(setting: Setting) -> Nature:
    """Return the world of a setting: log-normal machines, exponential sessions, region outages."""
    random = np.random.default_rng([setting.seed, setting.volunteers, setting.stages])
    joins = _arrivals(setting, random)
    leaves = joins + _sessions(setting, random, len(joins))
    crashes = random.random(len(joins)) < world.CRASH_SHARE
    regions = random.integers(0, world.REGIONS, len(joins))
    if setting.churn > 0:
        joins, leaves, crashes = _with_outages(setting, random, joins, leaves, crashes, regions)
    order = np.argsort(joins, kind="stable")
    count = len(joins)
    return Nature(
        setting=setting,
        joins_s=joins[order],
        leaves_s=leaves[order],
        crashes=crashes[order],
        speed=np.exp(world.SIGMA * random.standard_normal(count)),
        bytes_per_s=world.MEDIAN_BYTES_PER_S * np.exp(world.SIGMA * random.standard_normal(count)),
    )


def _arrivals(setting: Setting, random: np.random.Generator) -> Floats:
    """Founders within the first minute, then a Poisson stream that keeps n stationary."""
    founders = random.uniform(0.0, world.ARRIVAL_S, setting.volunteers)
    expected = setting.volunteers * setting.churn * setting.hours
    later = random.uniform(0.0, setting.horizon_s, int(random.poisson(expected)))
    return np.concatenate([founders, later])


def _sessions(setting: Setting, random: np.random.Generator, count: int) -> Floats:
    if setting.churn <= 0:
        return np.full(count, np.inf)
    return random.exponential(3600.0 / setting.churn, count)


def _with_outages(
    setting: Setting,
    random: np.random.Generator,
    joins: Floats,
    leaves: Floats,
    crashes: Flags,
    regions: Ints,
) -> tuple[Floats, Floats, Flags]:
    """Let regions fail one after the other; returning volunteers count as new ones."""
    at_s = float(random.exponential(world.OUTAGE_EVERY_S))
    while at_s < setting.horizon_s:
        region = random.integers(0, world.REGIONS)
        there = np.flatnonzero((regions == region) & (joins <= at_s) & (at_s < leaves))
        hit = there[random.random(len(there)) < world.OUTAGE_SHARE]
        leaves[hit], crashes[hit] = at_s, True
        back = at_s + random.uniform(*world.RETURN_S, len(hit))
        joins = np.concatenate([joins, back])
        leaves = np.concatenate([leaves, back + _sessions(setting, random, len(hit))])
        crashes = np.concatenate([crashes, random.random(len(hit)) < world.CRASH_SHARE])
        regions = np.concatenate([regions, np.full(len(hit), region)])
        at_s += float(random.exponential(world.OUTAGE_EVERY_S))
    return joins, leaves, crashes

"""Simulated annealing over assignments of one stage to each volunteer.

Pure but for the seeded generator it is given. Minimises sum_s exp(-BETA L_s / mean L), a smooth
stand-in for the lowest level that also rewards lifting the second lowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client.lab.simulate.market.nature import Floats, Ints

BETA = 25.0
START_TEMPERATURE = 0.02
"""Of the noise on a step's worth, as a share of the penalty; falls to zero."""
WIDE = 20_000
"""Volunteers x stages up to which every target is tried; beyond, only the neediest."""
NARROW_TARGETS = 4
SWAP_CANDIDATES = 400


@dataclass
class Plan:
    """An assignment: ``home`` (n,) and the resulting levels (S,)."""

    home: Ints
    levels: Floats

    def copy(self) -> Plan:
        """Return a plan that may be changed on its own."""
        return Plan(self.home.copy(), self.levels.copy())


@dataclass(frozen=True)
class Crew:
    """The volunteers to plan for."""

    rates: Floats
    """c (n, S)."""
    movable: Ints
    """Those that may move."""
    haste: Floats
    """Share of the planning horizon that a move leaves after its download (n,)."""
    swaps: bool = True
    """Whether two may exchange places: not if the first to arrive leaves a gap behind."""


def free(rates: Floats) -> Crew:
    """Return volunteers that may all move at no cost."""
    return Crew(rates, np.arange(len(rates)), np.ones(len(rates)))


def anneal(crew: Crew, plan: Plan, steps: int, random: np.random.Generator) -> Plan:
    """Return the best plan found in ``steps`` moves and swaps."""
    if len(crew.movable) == 0:
        return plan
    rates = crew.rates
    unit = max(float(plan.levels.mean()), 1.0) / BETA
    here, best = plan.copy(), plan.copy()
    best_penalty = _penalty(here.levels, unit)
    for step in range(steps):
        penalty = _penalty(here.levels, unit)
        noise = START_TEMPERATURE * penalty * (1 - (step + 1) / steps)
        change = min(
            _best_move(crew, here, unit, noise, random),
            _best_swap(crew, here, unit, noise, random),
            key=lambda found: found[0],
        )
        for volunteer, stage in change[1]:
            here.levels[here.home[volunteer]] -= rates[volunteer, here.home[volunteer]]
            here.levels[stage] += rates[volunteer, stage]
            here.home[volunteer] = stage
        penalty = _penalty(here.levels, unit)
        if penalty < best_penalty * (1 - 1e-9):
            best, best_penalty = here.copy(), penalty
        elif noise <= 0 or change[0] >= 0:
            break
    return best


Change = tuple[float, list[tuple[int, int]]]
"""The rise of the (noisy) penalty, and the moves."""


def _penalty(levels: Floats, unit: float) -> float:
    return float(np.exp(-levels / unit).sum())


def _best_move(
    crew: Crew, plan: Plan, unit: float, noise: float, random: np.random.Generator
) -> Change:
    rates, movable, stages = crew.rates, crew.movable, len(plan.levels)
    wide = len(movable) * stages <= WIDE
    targets = np.arange(stages) if wide else np.argsort(plan.levels)[:NARROW_TARGETS]
    home = plan.home[movable]
    now = np.exp(-plan.levels / unit)
    left = np.exp(-(plan.levels[home] - rates[movable, home]) / unit) - now[home]
    gained = np.exp(-(plan.levels[targets] + rates[np.ix_(movable, targets)]) / unit) - now[targets]
    worth = (left[:, None] + gained) * crew.haste[movable][:, None]
    worth[home[:, None] == targets] = np.inf
    if noise > 0:
        worth += noise * random.gumbel(size=worth.shape)
    row, column = np.unravel_index(int(worth.argmin()), worth.shape)
    return float(worth[row, column]), [(int(movable[row]), int(targets[column]))]


def _best_swap(
    crew: Crew, plan: Plan, unit: float, noise: float, random: np.random.Generator
) -> Change:
    """Try to exchange a volunteer of the weakest stage for another one."""
    if not crew.swaps:
        return np.inf, []
    rates, movable = crew.rates, crew.movable
    weakest = int(plan.levels.argmin())
    inside = movable[plan.home[movable] == weakest]
    outside = movable[plan.home[movable] != weakest]
    if len(outside) > SWAP_CANDIDATES:
        outside = random.choice(outside, SWAP_CANDIDATES, replace=False)
    if len(inside) == 0 or len(outside) == 0:
        return np.inf, []
    inside = inside[:NARROW_TARGETS]
    home = plan.home[outside]
    now = np.exp(-plan.levels / unit)
    here = plan.levels[weakest] + rates[outside, weakest][:, None] - rates[inside, weakest]
    there = (plan.levels[home] - rates[outside, home])[:, None] + rates[np.ix_(inside, home)].T
    worth = np.exp(-here / unit) + np.exp(-there / unit) - now[weakest] - now[home][:, None]
    worth = worth * np.minimum(crew.haste[outside][:, None], crew.haste[inside])
    if noise > 0:
        worth += noise * random.gumbel(size=worth.shape)
    row, column = np.unravel_index(int(worth.argmin()), worth.shape)
    comes, goes = int(outside[row]), int(inside[column])
    return float(worth[row, column]), [(comes, weakest), (goes, int(home[row]))]

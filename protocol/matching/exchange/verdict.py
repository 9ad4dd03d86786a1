"""The commit rule: decides whether a plan is worth its moves, all or nothing.

A pure function of the stages' ballots, so any member can recompute the chair's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.matching.design import Design
from protocol.matching.exchange import load
from protocol.matching.exchange.load import Basis
from protocol.matching.exchange.projection import SAMPLES, Projection
from protocol.matching.preferences import words as rate_words

GAIN_PERCENT = 1
"""A plan must raise the lowest stage by this much over the horizon, after the moves' penalty."""
MOVE_COST_PERCENT = 5
"""The penalty, multiplied by the share of volunteers that move."""


class Coverage(NamedTuple):
    """Empty stages, then missing replicas; tuples compare in this order, less is better."""

    empty: int
    missing: int

    @classmethod
    def of(cls, replicas: Sequence[int], r: int) -> Coverage:
        """Return the coverage of stages with ``replicas`` each, of which ``r`` are needed."""
        return cls(sum(not n for n in replicas), sum(max(0, r - n) for n in replicas))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a plan."""

    basis: Basis
    projection: Projection


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision with its reason."""

    adopted: bool
    words: str


def judge(stages: Sequence[StagePlan], r: int, design: Design) -> Verdict:
    """Decide on a plan.

    Args:
        stages: every stage of the plan, in pipeline order.
        r: replicas that each stage should have.
        design: the ingredients in force.
    """
    movers = sum(stage.projection.leaving for stage in stages)
    if not movers:
        return Verdict(False, "nobody would move")
    volunteers = sum(stage.basis.replicas for stage in stages)
    now = Coverage.of([stage.basis.replicas for stage in stages], r)
    then = Coverage.of([stage.projection.replicas for stage in stages], r)
    moved = f"{movers} of {volunteers} move"
    if then > now:
        return Verdict(False, f"stages would lack replicas: {_in_words(then)}, {moved}")
    if then < now:
        return Verdict(True, f"mends coverage, {_in_words(now)} to {_in_words(then)}, {moved}")
    thin = [s for s, stage in enumerate(stages) if _dips(stage, r)]
    if thin:
        return Verdict(False, f"stage {thin[0]} would lack replicas on the way, {moved}")
    return _weigh(stages, movers, volunteers, design)


def _weigh(stages: Sequence[StagePlan], movers: int, volunteers: int, design: Design) -> Verdict:
    """Compare the lowest stage over the horizon with and without the plan."""
    samples = [
        load.lowest([stage.projection.timeline[k] for stage in stages]) for k in range(SAMPLES)
    ]
    lowest = load.lowest([stage.basis.load for stage in stages])
    before, after = lowest * SAMPLES, sum(samples)
    if design.commit_rule:
        scale = 100 // MOVE_COST_PERCENT * volunteers
        worth = after * (scale - movers) * 100 >= before * scale * (100 + GAIN_PERCENT)
        worth = worth and after > before
    else:
        worth = samples[-1] > lowest
    change = f"from {rate_words(lowest)} to {rate_words(after // SAMPLES)} over 30 min"
    return Verdict(worth, f"the lowest stage would go {change}, {movers} of {volunteers} move")


def _dips(stage: StagePlan, r: int) -> bool:
    """Tell whether a stage has, at some time, fewer than min(r, before, after) replicas."""
    before, after = stage.basis.replicas, stage.projection.replicas
    return stage.projection.thinnest < min(r, before, after)


def _in_words(coverage: Coverage) -> str:
    return f"{coverage.empty} empty stages and {coverage.missing} missing replicas"

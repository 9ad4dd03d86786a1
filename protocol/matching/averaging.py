"""What averaging costs a step, and whether a second stage is worth it.

Whoever holds a stage together with others sends and receives its gradient in every step. A second
stage evens out the levels, and it doubles what its holder averages; where stages had one replica
each, it makes their holders average at all. Steps are compared as if all members held one stage
each, and as if time were spread evenly, so that the answer does not depend on who already holds
two. Pure functions; nothing here is disputed between members, so numbers are floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model_zoo.specs.codec import CODECS
from protocol.manifest import Manifest, StageCost

MICRO = 1_000_000
WORK_PER_PARAMETER = 2000.0
"""Computing that averaging takes of a replica, in the FLOP of a matrix product that take as long.
Not measured by itself: an estimate of 40 ns a parameter at 50 GFLOP/s, from a run of 86M parameters
at 312 tokens/s where 530 were possible without averaging."""
WORTH_PERCENT = 180
"""A second stage may make steps this long, in per cent of those without: where members are so few
that it is the only other replica, a death without it undoes all steps since the last checkpoint."""
DROP_PERCENT = 230
"""A second stage that makes steps longer than this is given up: what is between is noise."""


@dataclass(frozen=True, slots=True)
class Averaging:
    """The averaging of a run."""

    microbatches: int
    """Per step."""
    bytes_per_parameter: float
    """On the wire, of a contribution."""
    delayed: bool = False
    """Whether averaging takes place beside the computing of the next step."""

    @classmethod
    def of(cls, manifest: Manifest) -> Averaging:
        """Return the averaging of a swarm."""
        return cls(
            manifest.microbatches_per_step,
            CODECS[manifest.averaging_codec].bytes_per_number,
            manifest.delayed_update is True,
        )

    def round_s(self, cost: StageCost, copies: int, line: Line) -> float:
        """Return the seconds that a step's round of one stage takes of a replica.

        Args:
            cost: of the stage.
            copies: its replicas; one alone averages nothing.
            line: of the replica.
        """
        if copies < 2:
            return 0.0
        sent = cost.parameters * self.bytes_per_parameter * 2 * (copies - 1) / copies
        return _over(sent, line.bytes_per_s) + _over(
            cost.parameters * WORK_PER_PARAMETER, line.flops
        )

    def step_s(self, level: float, rounds_s: Iterable[float]) -> float:
        """Return the seconds of a step.

        Args:
            level: of the slowest stage, in micro-microbatches per second.
            rounds_s: what averaging takes of some replicas; the slowest one counts.
        """
        computing, averaging = _over(self.microbatches * MICRO, level), max(rounds_s, default=0.0)
        return max(computing, averaging) if self.delayed else computing + averaging


@dataclass(frozen=True, slots=True)
class Line:
    """What a replica averages with."""

    bytes_per_s: float
    """Of the slower direction."""
    flops: float


@dataclass(frozen=True, slots=True)
class Trade:
    """The seconds of a step with a second stage and without it."""

    with_it_s: float
    without_s: float

    def is_worth(self, *, held: bool) -> bool:
        """Tell whether the second stage is worth its averaging.

        Args:
            held: whether it is held already.
        """
        percent = DROP_PERCENT if held else WORTH_PERCENT
        return self.with_it_s * 100 <= self.without_s * percent

    def __str__(self) -> str:
        return f"steps would take {self.with_it_s:.3g} s with it and {self.without_s:.3g} s without"


def second_stage(
    averaging: Averaging,
    costs: Sequence[StageCost],
    homes: Sequence[Sequence[Line]],
    *,
    lowest: float,
    fair: float,
    line: Line,
    stages: tuple[int, int],
) -> Trade:
    """Return what a second stage, and averaging it, make of a step.

    Without second stages the lowest level counts and every replica averages its home; with them
    time is spread evenly, and who asks averages both stages, each of which has one replica more
    than members at home.

    Args:
        averaging: of the run.
        costs: of every stage.
        homes: what the members at home in every stage average with.
        lowest: level of the slowest stage without second stages, in millionths per second.
        fair: the level of all stages if time were spread evenly.
        line: of the one that asks.
        stages: its home and the second stage.
    """
    alone = [
        averaging.round_s(cost, len(lines), each)
        for cost, lines in zip(costs, homes, strict=True)
        for each in lines
    ]
    both, there = 0.0, list[float]()
    for stage in stages:
        cost, copies = costs[stage], len(homes[stage]) + 1
        both += averaging.round_s(cost, copies, line)
        there += [averaging.round_s(cost, copies, each) for each in homes[stage]]
    with_it_s = averaging.step_s(fair, [*alone, both, *there])
    return Trade(with_it_s, averaging.step_s(lowest, alone))


def _over(amount: float, rate: float) -> float:
    return amount / rate if rate > 0 else float("inf")

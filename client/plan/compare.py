"""Predicts several cuts of a model for given machines. ``Works`` supplies the costs of stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from client.plan.machines import Machine, StageWork
from client.plan.model import Placement, Prediction, Run, predict
from client.plan.placing import place
from protocol.limits import MAX_STAGES

NEARLY = 0.99
"""Plans with at least this share of the highest speed count as equally fast."""

ONE_LAYER = "memory: a stage of one layer"
"""How a reason begins that no other cut mends."""


class Works(Protocol):
    """The costs of one model's stages."""

    def __call__(self, stages: int) -> Sequence[StageWork] | None:
        """Return every stage's work; None if this cut is impossible."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms common to all alternatives."""

    microbatches: int
    """Per step."""
    tokens_per_microbatch: int
    averaging_bytes_per_parameter: float
    redundancy: int
    """Replicas that every stage should have."""
    delayed: bool = False
    """Whether the one-step-delayed update is used."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One cut and its prediction; without one ``why`` has the reason."""

    stages: int
    prediction: Prediction | None = None
    run: Run | None = None
    placement: Placement = ()
    why: str = ""

    @property
    def replicas(self) -> int:
        """Replicas of the stage that has the fewest."""
        return min(map(len, self.placement), default=0)


def alternatives(
    machines: Sequence[Machine], works: Works, terms: Terms, stages: Iterable[int]
) -> list[Alternative]:
    """Return a prediction for every possible stage count.

    Args:
        machines: the volunteers.
        works: supplies the costs of stages.
        terms: common to all alternatives.
        stages: stage counts to compare.
    """
    found = [(count, works(count)) for count in stages]
    return [_alternative(machines, work, terms, count) for count, work in found if work is not None]


def best_of(found: Sequence[Alternative], redundancy: int) -> Alternative | None:
    """Return the fastest of the alternatives with the most redundancy, up to ``redundancy``.

    Of those within one per cent of the fastest, the one with fewer stages wins. None if none is
    possible.
    """
    working = [each for each in found if each.prediction is not None]
    safest = max((min(each.replicas, redundancy) for each in working), default=0)
    safe = [each for each in working if each.replicas >= safest]
    fastest = max(map(_speed, safe), default=0.0)
    near = [each for each in safe if _speed(each) >= NEARLY * fastest]
    return min(near, key=lambda each: each.stages, default=None)


def stage_counts(layers: int, machines: int) -> list[int]:
    """Return the stage counts to compare: powers of two up to what layers and machines allow."""
    most = min(layers, machines, MAX_STAGES)
    return sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)})


def _speed(each: Alternative) -> float:
    return each.prediction.tokens_per_s if each.prediction else 0.0


def _alternative(
    machines: Sequence[Machine], stages: Sequence[StageWork], terms: Terms, count: int
) -> Alternative:
    placement = place(machines, stages, terms.redundancy)
    if placement is None:
        return Alternative(count, why=_uncovered(machines, stages))
    run = Run(
        stages=tuple(stages),
        microbatches=terms.microbatches,
        tokens_per_microbatch=terms.tokens_per_microbatch,
        averaging_bytes_per_parameter=terms.averaging_bytes_per_parameter,
        delayed=terms.delayed,
    )
    try:
        return Alternative(count, predict(run, placement), run, placement)
    except ValueError as error:
        return Alternative(count, why=str(error))


def _uncovered(machines: Sequence[Machine], stages: Sequence[StageWork]) -> str:
    if len(machines) < len(stages):
        return f"coverage: {len(stages)} stages need as many machines"
    dearest = max(stages, key=lambda work: work.cost.memory_bytes)
    if any(dearest.fits(machine) for machine in machines):
        return "coverage: too few machines have the memory of the larger stages"
    largest = max(machine.memory_bytes for machine in machines)
    what = ONE_LAYER if dearest.cost.layers == 1 else "memory: a stage"
    return (
        f"{what} needs {dearest.cost.memory_bytes / 1e9:.2f} GB, the largest machine "
        f"lends {largest / 1e9:.2f} GB"
    )

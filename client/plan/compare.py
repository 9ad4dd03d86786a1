"""Searches for the best number of stages and microbatch size for given machines.

All alternatives have the same tokens per step, so that they train alike: half the microbatch size
means twice as many. ``Works`` supplies the cost of a stage and may measure it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from client.plan.machines import MEMORY_SHARE, Machine, StageWork
from client.plan.model import Placement, Prediction, Run, predict
from client.plan.placing import place
from protocol.limits import MAX_MICROBATCHES_PER_STEP, MAX_STAGES

MOST_LEFT_OUT = 32
"""The most machines that are left out because their links slow down the averaging."""

NEARLY = 0.99
"""Plans with at least this share of the highest speed count as equally fast."""

ONE_LAYER = "memory: a stage of one layer"
"""How a reason begins that no other cut mends."""
TOO_MANY = f"more than {MAX_MICROBATCHES_PER_STEP} microbatches a step"


class Works(Protocol):
    """The costs of one model's stages."""

    def __call__(self, stages: int, sequences: int) -> Sequence[StageWork] | None:
        """Return every stage's work; None if this cut or microbatch size is impossible."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms common to all alternatives."""

    sequences_per_step: int
    context: int
    averaging_bytes_per_parameter: float
    redundancy: int
    """Replicas that every stage should have."""
    delayed: bool = False
    """Whether the one-step-delayed update is used."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One cut with one microbatch size, and its prediction; without one ``why`` has the reason."""

    stages: int
    sequences: int
    """Per microbatch."""
    microbatches: int
    """Per step."""
    prediction: Prediction | None = None
    run: Run | None = None
    placement: Placement = ()
    why: str = ""

    @property
    def replicas(self) -> int:
        """Replicas of the stage that has the fewest."""
        return min(map(len, self.placement), default=0)


def alternatives(
    machines: Sequence[Machine],
    works: Works,
    terms: Terms,
    stages: Iterable[int],
    sequences: Iterable[int],
) -> list[Alternative]:
    """Return a prediction for every possible pair of stage count and microbatch size.

    Args:
        machines: the volunteers.
        works: supplies the costs of stages.
        terms: common to all alternatives.
        stages: stage counts to compare.
        sequences: sequences per microbatch to compare.
    """
    pairs = [(count, size) for count in stages for size in sequences]
    found = [_alternative(machines, works, terms, count, size) for count, size in pairs]
    return [each for each in found if each is not None]


def best_of(found: Sequence[Alternative], redundancy: int) -> Alternative | None:
    """Return the fastest of the alternatives with the most redundancy, up to ``redundancy``.

    Of those within one per cent of the fastest, the one with fewer stages wins, then the one with
    the larger microbatch. None if none is possible.
    """
    working = [each for each in found if each.prediction is not None]
    safest = max((min(each.replicas, redundancy) for each in working), default=0)
    safe = [each for each in working if each.replicas >= safest]
    fastest = max(map(_speed, safe), default=0.0)
    near = [each for each in safe if _speed(each) >= NEARLY * fastest]
    return max(near, key=lambda each: (-each.stages, each.sequences), default=None)


def stage_counts(layers: int, machines: int) -> list[int]:
    """Return the stage counts to compare: powers of two up to what layers and machines allow."""
    most = min(layers, machines, MAX_STAGES)
    return sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)})


def microbatch_sizes(usual: int, per_step: int) -> list[int]:
    """Return the sequences per microbatch to compare: the usual size and powers of two near it.

    They are between an eighth and eight times the usual size and divide a step's sequences.
    """
    near = [2**i for i in range(13) if usual / 8 <= 2**i <= usual * 8]
    return sorted(size for size in {usual, *near} if _divides(size, per_step))


def _divides(size: int, per_step: int) -> bool:
    return per_step % size == 0 and per_step // size <= MAX_MICROBATCHES_PER_STEP


def _speed(each: Alternative) -> float:
    return each.prediction.tokens_per_s if each.prediction else 0.0


def _alternative(
    machines: Sequence[Machine], works: Works, terms: Terms, count: int, size: int
) -> Alternative | None:
    stages = works(count, size)
    if stages is None:
        return None
    microbatches = terms.sequences_per_step // size
    if microbatches > MAX_MICROBATCHES_PER_STEP:
        return Alternative(count, size, microbatches, why=TOO_MANY)
    placement = place(machines, stages, terms.redundancy)
    if placement is None:
        return Alternative(count, size, microbatches, why=_uncovered(machines, stages))
    run = Run(
        stages=tuple(stages),
        microbatches=microbatches,
        tokens_per_microbatch=size * terms.context,
        averaging_bytes_per_parameter=terms.averaging_bytes_per_parameter,
        delayed=terms.delayed,
    )
    try:
        chosen, prediction = _without_brakes(run, placement, terms.redundancy)
    except ValueError as error:
        return Alternative(count, size, microbatches, why=str(error))
    return Alternative(count, size, microbatches, prediction, run, chosen)


def _without_brakes(
    run: Run, placement: list[list[Machine]], redundancy: int
) -> tuple[list[list[Machine]], Prediction]:
    """Leave out machines with slow links while that makes the swarm faster."""
    prediction = predict(run, placement)
    for _ in range(MOST_LEFT_OUT):
        stage = max(range(len(placement)), key=lambda s: prediction.stages[s].exposed_s)
        members = placement[stage]
        if len(members) <= max(1, redundancy) or prediction.stages[stage].exposed_s <= 0:
            break
        brake = min(members, key=lambda m: min(m.upload_bytes_per_s, m.download_bytes_per_s))
        fewer = [list(each) for each in placement]
        fewer[stage].remove(brake)
        without = predict(run, fewer)
        if without.tokens_per_s <= prediction.tokens_per_s:
            break
        placement, prediction = fewer, without
    return placement, prediction


def _uncovered(machines: Sequence[Machine], stages: Sequence[StageWork]) -> str:
    if len(machines) < len(stages):
        return f"coverage: {len(stages)} stages need as many machines"
    dearest = max(stages, key=lambda work: work.cost.memory_bytes)
    if any(dearest.fits(machine) for machine in machines):
        return "coverage: too few machines have the memory of the larger stages"
    largest = max(machines, key=lambda machine: machine.memory_bytes)
    what = ONE_LAYER if dearest.cost.layers == 1 else "memory: a stage"
    lends = "device" if largest.devices > 1 else "machine"
    return (
        f"{what} needs {dearest.cost.memory_bytes / 1e9:.2f} GB, the largest {lends} "
        f"lends {largest.memory_bytes / 1e9:.2f} GB{_cut_words(dearest, machines)}"
    )


def _cut_words(work: StageWork, machines: Sequence[Machine]) -> str:
    """Say what the devices of the machine that comes closest to cutting a stage lack."""
    able = [(cut, each) for each in machines if (cut := work.cut_by(each)) is not None]
    if able:
        cut, machine = min(able, key=lambda pair: pair[0].rerun_bytes / pair[1].memory_bytes)
        each = (cut.rerun_bytes + cut.shared_bytes(machine)) / MEMORY_SHARE
        host = f" and {cut.host_bytes / 1e9:.2f} GB of its host" if machine.host_bytes else ""
        words = f"cut over {cut.devices} devices it needs {each / 1e9:.2f} GB of"
        return f"; {words} each{host}"
    reasons = ((machine, work.why_uncut(machine)) for machine in machines)
    found = next(((machine, why) for machine, why in reasons if why), None)
    return f"; {found[0].devices} devices cannot cut it: {found[1]}" if found else ""

"""Deals machines out to the stages of several cuts of a model, and prefers one of the cuts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from client.plan.model import Load, Machine, Placement, Prediction, Run, fits, predict, rate
from protocol.limits import MAX_REPLICAS_IN_ROUND, MAX_STAGES

NEARLY = 0.99
"""Plans with at least this share of the highest speed count as equally fast."""
ONE_LAYER = "memory: a stage of one layer"
"""How a reason begins that no other cut mends."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One cut and its prediction; without one ``why`` has the reason."""

    run: Run
    """With the stages of the cut."""
    prediction: Prediction | None = None
    placement: Placement = ()
    why: str = ""

    @property
    def replicas(self) -> int:
        """Replicas of the stage that has the fewest."""
        return min(map(len, self.placement), default=0)

    @property
    def tokens_per_s(self) -> float:
        """The predicted speed; 0 if the cut is impossible."""
        return self.prediction.tokens_per_s if self.prediction else 0.0


def stage_counts(layers: int, machines: int) -> list[int]:
    """Return the stage counts to compare: powers of two up to what layers and machines allow."""
    most = min(layers, machines, MAX_STAGES)
    return sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)})


def alternative(
    machines: Sequence[Machine],
    run: Run,
    redundancy: int,
    pace: Callable[[Run, Placement], Run] | None = None,
) -> Alternative:
    """Return the prediction for one cut.

    Args:
        machines: the volunteers.
        run: with the stages of the cut.
        redundancy: replicas that every stage should have.
        pace: gives a run the length of its rounds, which depends on the placement.
    """
    placement = place(machines, run.stages, redundancy)
    if placement is None:
        return Alternative(run, why=_uncovered(machines, run.stages))
    try:
        run = pace(run, placement) if pace else run
        return Alternative(run, predict(run, placement), placement)
    except ValueError as error:
        return Alternative(run, why=str(error))


def best_of(found: Sequence[Alternative], redundancy: int) -> Alternative | None:
    """Return the fastest of the alternatives with the most redundancy, up to ``redundancy``.

    Of those within one per cent of the fastest, the one with fewer stages wins. None if none is
    possible.
    """
    working = [each for each in found if each.prediction is not None]
    safest = max((min(each.replicas, redundancy) for each in working), default=0)
    safe = [each for each in working if each.replicas >= safest]
    fastest = max((each.tokens_per_s for each in safe), default=0.0)
    near = [each for each in safe if each.tokens_per_s >= NEARLY * fastest]
    return min(near, key=lambda each: len(each.run.stages), default=None)


def place(
    machines: Sequence[Machine], stages: Sequence[Load], redundancy: int
) -> list[list[Machine]] | None:
    """Return the replicas of every stage, as the matching would; None if a stage cannot have one.

    Coverage comes before redundancy, and redundancy before throughput: every machine, those that
    fit few stages first and then the fast ones, goes to the stage with the fewest replicas below
    the wanted ones, else to the one with the lowest rate (longest processing time first; Graham
    1969). Machines that fit no stage, and those beyond ``MAX_REPLICAS_IN_ROUND`` per stage, are
    left out. Each machine gets one stage; the client's second seats even out the rates further.
    """
    rates = {each: [rate(load, each) for load in stages] for each in dict.fromkeys(machines)}
    members: list[list[Machine]] = [[] for _ in stages]
    levels = [0.0] * len(stages)

    def choice(machine: Machine) -> tuple[int, float]:
        return sum(rate > 0 for rate in rates[machine]), -max(rates[machine])

    def need(stage: int) -> tuple[int, float]:
        return min(len(members[stage]), redundancy), levels[stage]

    for machine in sorted(machines, key=choice):
        open_to = [
            stage
            for stage, rate in enumerate(rates[machine])
            if rate > 0 and len(members[stage]) < MAX_REPLICAS_IN_ROUND
        ]
        if open_to:
            stage = min(open_to, key=need)
            members[stage].append(machine)
            levels[stage] += rates[machine][stage]
    return members if all(members) else None


def _uncovered(machines: Sequence[Machine], stages: Sequence[Load]) -> str:
    if len(machines) < len(stages):
        return f"coverage: {len(stages)} stages need as many machines"
    dearest = max(stages, key=lambda load: load.cost.memory_bytes)
    if any(fits(dearest, machine) for machine in machines):
        return "coverage: too few machines have the memory of the larger stages"
    what = ONE_LAYER if dearest.cost.layers == 1 else "memory: a stage"
    return f"{what} needs {_memory(dearest, max(machines, key=lambda each: each.memory_bytes))}"


def _memory(load: Load, machine: Machine) -> str:
    """What a stage needs, and what a machine lends."""
    if not (load.hosted_bytes and machine.host_bytes):
        needed = load.cost.memory_bytes
        return f"{_gb(needed)}, the largest machine lends {_gb(machine.memory_bytes)}"
    return (
        f"{_gb(load.beside_host_bytes)} and {_gb(load.hosted_bytes)} of the host's, the largest "
        f"machine lends {_gb(machine.memory_bytes)} and {_gb(machine.host_bytes)}"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"

"""The answer of ``volunteer plan``: the best plan, the compared ones, and its costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from client.cli.founding.fitting import what_is_smaller
from client.cli.founding.outlook import LONG_S
from client.cli.planning.run import PlannedRun
from client.cli.terminal.mixture_text import MANY_TIMES, describe_mixture, warn_of_repeats
from client.errors import UserError
from client.plan.cuts import ONE_LAYER, Alternative, alternative, best_of
from client.plan.model import COSTS_NOTHING, Machine, Prediction, StageTerms
from client.quantities import plural
from client.views.words import duration as human_duration
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import frozen_bytes, slices
from model_zoo.specs.tokens import BYTE_VOCAB


class StageLine(Struct, frozen=True):
    """One stage of the best plan."""

    stage: int
    layers: int
    parameters: int
    machines: dict[str, int]
    """How many of each kind."""
    memory_bytes: float
    """That a machine needs for it."""
    frozen_bytes: int
    """Of weights beside adapters; 0 where everything is trained."""
    state_bytes: int
    """Of what is trained, with the optimizer's: what a newcomer copies, and a checkpoint has."""
    averaged_bytes: float
    """Of a replica's contribution to a step."""
    terms: StageTerms
    bottleneck: bool


class Row(Struct, frozen=True):
    """One of the compared plans."""

    stages: int
    replicas: int
    """Replicas of the stage that has the fewest."""
    best: bool
    why: str
    """The reason why it is impossible; empty if it is possible."""
    tokens_per_s: float = 0.0
    limit: str = "coverage"
    efficiency: float = 0.0
    in_flight: int = 0
    step_s: float = 0.0


class Cost(Struct, frozen=True):
    """The costs of training a number of tokens with the best plan."""

    tokens: int
    steps: float
    seconds: float
    sent_bytes: float
    """Bytes of the volunteer that sends most."""
    received_bytes: float


class Answer(Struct, frozen=True):
    """Answer of ``volunteer plan --json``. Rates that nothing limits are null."""

    parameters: int
    sequences: int
    """Of a microbatch."""
    microbatches: int
    """Of a step."""
    tokens_per_step: int
    machines: int
    used: int
    best: Row
    prediction: Prediction
    stages: list[StageLine]
    alternatives: list[Row]
    cost: Cost
    notes: list[str]


def answer(run: PlannedRun, machines: Sequence[Machine], tokens: int | None) -> Answer:
    """Predict every cut and return the best.

    Args:
        run: the run to plan.
        machines: the volunteers.
        tokens: tokens to train; None: those of the run.

    Raises:
        UserError: the machines cannot train the model.
    """
    found = [alternative(machines, cut, run.pace, run.redundancy) for cut in run.cuts]
    best = best_of(found, run.redundancy)
    if best is None or best.prediction is None:
        raise _no_plan(found, run.model)
    used = sum(map(len, best.placement))
    stages, cost = _stage_lines(run, best, best.prediction), _cost(run, best.prediction, tokens)
    return Answer(
        parameters=sum(line.parameters for line in stages),
        sequences=run.sequences,
        microbatches=run.pace.microbatches,
        tokens_per_step=run.tokens_per_step,
        machines=len(machines),
        used=used,
        best=_row(best, best),
        prediction=best.prediction,
        stages=stages,
        alternatives=[_row(each, best) for each in found],
        cost=cost,
        notes=list(_notes(run, len(machines) - used, best, cost)),
    )


def _no_plan(found: Sequence[Alternative], model: ModelSpec) -> UserError:
    problem = found[-1].why
    advice = "add machines or memory, allow more --stages, or choose a smaller model"
    if problem.startswith(ONE_LAYER):
        advice = f"{what_is_smaller(model)}; or add memory"
    elif problem == COSTS_NOTHING:
        advice = "ask the swarm's founder to found it again with measured costs"
    return UserError(f"these machines cannot train it together; {problem}", advice)


def _row(each: Alternative, best: Alternative) -> Row:
    found = each.prediction
    if found is None:
        return Row(len(each.costs), each.replicas, False, each.why)
    return Row(
        stages=len(each.costs),
        replicas=each.replicas,
        best=each is best,
        why="",
        tokens_per_s=found.tokens_per_s,
        limit=found.limit,
        efficiency=found.efficiency,
        in_flight=found.in_flight,
        step_s=found.step_s,
    )


def _stage_lines(run: PlannedRun, best: Alternative, found: Prediction) -> list[StageLine]:
    parts = slices([cost.layers for cost in best.costs])
    return [
        StageLine(
            stage=number,
            layers=cost.layers,
            parameters=cost.parameters,
            machines=dict(Counter(machine.name for machine in members)),
            memory_bytes=cost.memory_bytes,
            frozen_bytes=frozen_bytes(run.model, part),
            state_bytes=cost.parameters * run.state.bytes_per_parameter,
            averaged_bytes=cost.parameters * run.pace.averaging_bytes_per_parameter,
            terms=terms,
            bottleneck=number == found.bottleneck,
        )
        for number, (cost, part, members, terms) in enumerate(
            zip(best.costs, parts, best.placement, found.stages, strict=True)
        )
    ]


def _cost(run: PlannedRun, found: Prediction, tokens: int | None) -> Cost:
    wanted = tokens or run.steps * run.tokens_per_step
    steps = wanted / run.tokens_per_step
    return Cost(
        tokens=wanted,
        steps=steps,
        seconds=wanted / found.tokens_per_s,
        sent_bytes=steps * max(terms.sent_bytes for terms in found.stages),
        received_bytes=steps * max(terms.received_bytes for terms in found.stages),
    )


def _notes(run: PlannedRun, idle: int, best: Alternative, cost: Cost) -> Iterator[str]:
    """Yield the limits of the plan's validity."""
    if best.replicas < run.redundancy:
        yield (f"too few machines for redundancy {run.redundancy}: some stage has {best.replicas}")
    rule = RULES[run.rule]
    if best.replicas < rule.replicas:
        fewer = "no step may lose one" if rule.secret else "it bounds norms and finds no liar"
        fewer = "there is one sum of all, and it finds no liar" if rule.buckets > 1 else fewer
        yield (
            f"{run.rule}: some stage has {best.replicas} replicas, and with fewer "
            f"than {rule.replicas} {fewer}"
        )
    if run.audit_percent:
        yield f"audits: {run.audit_percent} % of the work is done twice, by idle machines first"
        if best.replicas < 3:
            yield f"audits: some stage has {best.replicas} replicas; fewer than 3 expel nobody"
    if idle:
        yield f"not used: {plural(idle, 'machine')}, too small, or more than a round takes"
    if run.manifest is None:
        yield (
            f"the run reads {cost.tokens:,.0f} tokens: bring {cost.tokens / MANY_TIMES:,.0f} or "
            f"more, or it reads them more than {MANY_TIMES} times, which teaches less than new text"
        )
    if cost.seconds > LONG_S:
        yield (
            f"it takes {human_duration(cost.seconds)}: more or faster machines, fewer tokens "
            "(--tokens shows what they take), or a smaller model"
        )
    if run.manifest is None and run.model.vocab != BYTE_VOCAB:
        yield f"for a tokenizer of {run.model.vocab:,} tokens; --vocab plans for another"
    if run.manifest is not None:
        if words := describe_mixture(run.manifest, cost.steps):
            yield words
        yield from warn_of_repeats(run.manifest, cost.steps)

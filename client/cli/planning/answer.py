"""The answer of ``volunteer plan``: the best plan, the compared ones, and its costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from client.cli.founding.averaging import averaging_share
from client.cli.founding.fitting import what_is_smaller
from client.cli.founding.outlook import LONG_S
from client.cli.planning.run import EXACT, LOCAL, NARROW, Method, PlannedRun
from client.cli.terminal.mixture_text import MANY_TIMES, describe_mixture, warn_of_repeats
from client.errors import UserError
from client.plan.cuts import ONE_LAYER, Alternative, alternative, best_of
from client.plan.model import (
    COSTS_NOTHING,
    Load,
    Machine,
    Placement,
    Prediction,
    Run,
    StageTerms,
    fits,
)
from client.plan.rounds import ENOUGH_ROUNDS, NARROW_PERCENT, WORTH_SHARE, gap_percent
from client.quantities import plural
from client.views.words import duration as human_duration
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS
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
    """That a machine needs for it, a GPU with a host beside `host_memory_bytes` of the host's."""
    host_memory_bytes: float
    """0: no machine of the stage has a host with memory, or it keeps nothing there."""
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
    prediction: Prediction | None = None
    """None: it is impossible."""


class Way(Struct, frozen=True):
    """A way to average with its best plan."""

    name: str
    boundary_codec: str
    averaging_codec: str
    chosen: bool
    why: str
    """The reason why it is impossible; empty if it is possible."""
    stages: int = 0
    replicas: int = 0
    tokens_per_s: float = 0.0
    share: float = 0.0
    """Of what all machines would do if each could train the whole model by itself."""
    step_s: float = 0.0
    """Of a step, or a round."""
    sent_bytes_per_day: float = 0.0
    """Of the volunteer that sends most."""
    sent_bytes_per_month: float = 0.0
    loss_percent: float = 0.0
    """By how much the loss on held-out text is higher than with exact averaging after as many
    tokens; of small models (`client.plan.rounds`)."""


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
    """Of a step, or a round."""
    inner_microbatches: int
    """Local rounds: of a volunteer for each of its own steps; 0: all average in every step."""
    tokens_per_step: int
    machines: int
    used: int
    alone_tokens_per_s: float
    """Of all machines together, if each trained the whole model by itself."""
    holds_alone: bool
    """Whether a machine has the memory for that."""
    ways: list[Way]
    best: Row
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
    wanted = tokens or run.steps * run.tokens_per_step
    pace = partial(run.paced, wanted)
    found = [_Found.of(method, machines, run.redundancy, pace) for method in run.methods]
    way = _chosen(run, found)
    best = way.best
    if best is None or best.prediction is None:
        raise _no_plan(way.alternatives, run.models)
    chosen_run = best.run
    used = sum(map(len, best.placement))
    stages = _stage_lines(run, way, best, best.prediction)
    cost = _cost(best.run, best.prediction, wanted)
    alone = sum(machine.flop_per_s for machine in machines) / max(run.flops_per_token, 1e-30)
    return Answer(
        parameters=sum(line.parameters for line in stages),
        sequences=chosen_run.tokens_per_microbatch // run.models[len(stages)].context,
        microbatches=chosen_run.microbatches,
        inner_microbatches=chosen_run.inner_microbatches,
        tokens_per_step=chosen_run.microbatches * chosen_run.tokens_per_microbatch,
        machines=len(machines),
        used=used,
        alone_tokens_per_s=alone,
        holds_alone=any(each.holds_alone(machines) for each in found),
        ways=[each.way(each is way, alone, wanted) for each in found],
        best=_row(best, best),
        stages=stages,
        alternatives=[_row(each, best) for each in way.by_stages()],
        cost=cost,
        notes=list(_notes(run, len(machines) - used, best, cost)),
    )


@dataclass(frozen=True)
class _Found:
    """A way to average, the cuts that were compared and the best of them."""

    method: Method
    alternatives: tuple[Alternative, ...]
    best: Alternative | None

    @classmethod
    def of(
        cls,
        method: Method,
        machines: Sequence[Machine],
        redundancy: int,
        pace: Callable[[Run, Placement], Run],
    ) -> _Found:
        rounds = pace if method.local else None
        found = tuple(alternative(machines, run, redundancy, rounds) for run in method.runs)
        return cls(method, found, best_of(found, redundancy))

    def by_stages(self) -> list[Alternative]:
        """Return the fastest alternative of every number of stages, or one that says why not."""
        counts = dict.fromkeys(len(each.run.stages) for each in self.alternatives)
        found = []
        for count in counts:
            same = [each for each in self.alternatives if len(each.run.stages) == count]
            is_best = self.best is not None and self.best in same
            fastest = max(same, key=lambda each: each.tokens_per_s)
            found.append(self.best if is_best and self.best else fastest)
        return found

    def holds_alone(self, machines: Sequence[Machine]) -> bool:
        """Tell whether a machine has the memory for all of the model."""
        whole = [run.stages[0] for run in self.method.runs if len(run.stages) == 1]
        return any(fits(load, machine) for load in whole for machine in set(machines))

    def way(self, chosen: bool, alone: float, wanted: int) -> Way:
        """Return the line of the comparison.

        Args:
            chosen: whether the plan is this one.
            alone: tokens/s of all machines, each by itself.
            wanted: tokens of the run.
        """
        method, best = self.method, self.best
        codecs = method.boundary_codec, method.averaging_codec
        if best is None or best.prediction is None:
            return Way(method.name, *codecs, chosen, self.alternatives[-1].why)
        sent = max(terms.sent_bytes for terms in best.prediction.stages)
        per_day = sent * 86_400 / best.prediction.step_s
        muon = OPTIMIZERS[method.optimizer].by_matrix
        narrow = method.boundary_codec == NARROW and len(best.run.stages) > 1
        rounds = wanted / (best.run.microbatches * best.run.tokens_per_microbatch)
        loss = gap_percent(rounds, muon=muon) if method.local else 0.0
        return Way(
            *(method.name, *codecs, chosen, ""),
            stages=len(best.run.stages),
            replicas=best.replicas,
            tokens_per_s=best.tokens_per_s,
            share=best.tokens_per_s / alone,
            step_s=best.prediction.step_s,
            sent_bytes_per_day=per_day,
            sent_bytes_per_month=30 * per_day,
            loss_percent=loss + NARROW_PERCENT * narrow,
        )


def _chosen(run: PlannedRun, found: Sequence[_Found]) -> _Found:
    """Return the way that the run averages: the one that was asked for, else the exact one where
    averaging takes little, else the faster one."""
    by_name = {each.method.name: each for each in found}
    if run.averaging is not None:
        return by_name[run.averaging]
    exact, local = by_name[EXACT], by_name[LOCAL]
    if exact.best is None or exact.best.prediction is None:
        return local if local.best is not None else exact
    little = averaging_share(exact.best.prediction) <= WORTH_SHARE
    speed = local.best.tokens_per_s if local.best is not None else 0.0
    return exact if little or exact.best.tokens_per_s >= speed else local


def _no_plan(found: Sequence[Alternative], models: Mapping[int, ModelSpec]) -> UserError:
    problem, model = found[-1].why, models[max(models)]
    advice = "add machines or memory, allow more --stages, or choose a smaller model"
    if problem.startswith(ONE_LAYER):
        advice = f"{what_is_smaller(model)}; or add memory"
    elif problem == COSTS_NOTHING:
        advice = "ask the swarm's founder to found it again with measured costs"
    return UserError(f"these machines cannot train it together; {problem}", advice)


def _row(each: Alternative, best: Alternative) -> Row:
    return Row(len(each.run.stages), each.replicas, each is best, each.why, each.prediction)


def _stage_lines(
    run: PlannedRun, way: _Found, best: Alternative, found: Prediction
) -> list[StageLine]:
    costs = [load.cost for load in best.run.stages]
    parts, model = slices([cost.layers for cost in costs]), run.models[len(costs)]
    each_bytes = best.run.averaging_bytes_per_parameter
    return [
        StageLine(
            stage=number,
            layers=load.cost.layers,
            parameters=load.cost.parameters,
            machines=dict(Counter(machine.name for machine in members)),
            **_memory(load, members),
            frozen_bytes=frozen_bytes(model, part),
            state_bytes=load.cost.parameters * way.method.state.bytes_per_parameter,
            averaged_bytes=load.cost.parameters * each_bytes,
            terms=terms,
            bottleneck=number == found.bottleneck,
        )
        for number, (load, part, members, terms) in enumerate(
            zip(best.run.stages, parts, best.placement, found.stages, strict=True)
        )
    ]


def _memory(load: Load, members: Sequence[Machine]) -> dict[str, float]:
    """What a stage needs of a machine's memory and of its host's."""
    if load.hosted_bytes and any(machine.host_bytes for machine in members):
        return {"memory_bytes": load.beside_host_bytes, "host_memory_bytes": load.hosted_bytes}
    return {"memory_bytes": load.cost.memory_bytes, "host_memory_bytes": 0.0}


def _cost(run: Run, found: Prediction, wanted: int) -> Cost:
    steps = wanted / (run.microbatches * run.tokens_per_microbatch)
    return Cost(
        tokens=wanted,
        steps=steps,
        seconds=wanted / found.tokens_per_s,
        sent_bytes=steps * max(terms.sent_bytes for terms in found.stages),
        received_bytes=steps * max(terms.received_bytes for terms in found.stages),
    )


def _notes(run: PlannedRun, idle: int, best: Alternative, cost: Cost) -> Iterator[str]:
    """Yield the limits of the plan's validity."""
    vocab = run.models[max(run.models)].vocab
    if best.replicas < run.redundancy:
        yield (f"too few machines for redundancy {run.redundancy}: some stage has {best.replicas}")
    rule = RULES[run.rule]
    if best.replicas < rule.robust_from:
        yield (
            f"{run.rule}: some stage has {best.replicas} replicas, and with fewer "
            f"than {rule.robust_from} it bounds norms and finds no liar"
        )
    if run.audit_percent:
        yield f"audits: {run.audit_percent} % of the work is done twice, by idle machines first"
        if best.replicas < 3:
            yield f"audits: some stage has {best.replicas} replicas; fewer than 3 expel nobody"
    if best.run.inner_microbatches and cost.steps < ENOUGH_ROUNDS:
        shorter = max(1, round(best.run.microbatches * cost.steps / ENOUGH_ROUNDS))
        yield (
            f"{cost.steps:,.0f} rounds are few: with {ENOUGH_ROUNDS} the loss suffers less: train "
            f"{cost.tokens * ENOUGH_ROUNDS / cost.steps:,.0f} tokens, or average more often with "
            f"--microbatches {shorter}"
        )
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
    if run.manifest is None and vocab != BYTE_VOCAB:
        yield f"for a tokenizer of {vocab:,} tokens; --vocab plans for another"
    if run.manifest is not None:
        if words := describe_mixture(run.manifest, cost.steps):
            yield words
        yield from warn_of_repeats(run.manifest, cost.steps)

"""The answer of ``volunteer plan``: the best plan, the compared ones, and its costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from client.cli.founding.fitting import what_is_smaller
from client.cli.founding.outlook import LONG_S
from client.cli.founding.presets import BYTES
from client.cli.planning.machines import Kind, ThisMachine, machines_of
from client.cli.terminal.mixture_text import MANY_TIMES, describe_mixture, warn_of_repeats
from client.cli.terminal.output import human_duration
from client.errors import UserError
from client.plan import compare
from client.plan.compare import Alternative, Terms
from client.plan.machines import Machine
from client.plan.model import COSTS_NOTHING, Prediction, StageTerms
from client.quantities import plural
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.codec import CODECS
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import frozen_bytes, slices

if TYPE_CHECKING:
    from client.cli.planning.setting import Setting


class StageLine(Struct, frozen=True):
    """One stage of the best plan."""

    stage: int
    layers: int
    parameters: int
    machines: dict[str, int]
    """How many of each kind."""
    memory_bytes: float
    """Of a machine that has it."""
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


def row(each: Alternative, best: Alternative | None) -> Row:
    """Return one line of the comparison."""
    found = each.prediction
    if found is None:
        return Row(each.stages, each.replicas, each is best, each.why)
    return Row(
        stages=each.stages,
        replicas=each.replicas,
        best=each is best,
        why="",
        tokens_per_s=found.tokens_per_s,
        limit=found.limit,
        efficiency=found.efficiency,
        in_flight=found.in_flight,
        step_s=found.step_s,
    )


def answer(
    setting: Setting, kinds: Sequence[Kind], here: ThisMachine, tokens: int | None
) -> Answer:
    """Predict the possible plans and return the best.

    Args:
        setting: the run to plan.
        kinds: the machines.
        here: this machine, for values that ``kinds`` leave out.
        tokens: tokens to train; None: those of the run.

    Raises:
        UserError: the machines cannot train the model.
    """
    setting.fewest(sum(kind.count for kind in kinds))  # said before anything is measured
    works = setting.works()
    machines = machines_of(tuple(kinds), here, works.flops_per_token)
    terms = Terms(
        microbatches=setting.microbatches,
        tokens_per_microbatch=setting.sequences * setting.model.context,
        averaging_bytes_per_parameter=CODECS[setting.run.sent_codec].bytes_per_number,
        delayed=setting.run.delayed_update,
        redundancy=setting.run.replicas,
    )
    found = compare.alternatives(machines, works, terms, setting.counts(len(machines)))
    best = compare.best_of(found, setting.run.replicas)
    if best is None:
        raise _no_plan(found, setting.model)
    return _tell(setting, machines, found, best, tokens)


def _no_plan(found: Sequence[Alternative], model: ModelSpec) -> UserError:
    reasons = [each.why for each in found if each.why]
    problem = reasons[-1] if reasons else "no microbatch of this model fits a frame"
    advice = "add machines or memory, allow more --stages, or choose a smaller model"
    if problem.startswith(compare.ONE_LAYER):
        advice = f"{what_is_smaller(model)}; or add memory"
    elif problem == COSTS_NOTHING:
        advice = "ask the swarm's founder to found it again with measured costs"
    return UserError(f"these machines cannot train it together; {problem}", advice)


def _tell(
    setting: Setting,
    machines: Sequence[Machine],
    found: Sequence[Alternative],
    best: Alternative,
    tokens: int | None,
) -> Answer:
    assert best.prediction is not None and best.run is not None  # noqa: PT018  (best_of)
    parts = slices([work.cost.layers for work in best.run.stages])
    stages = [
        StageLine(
            stage=number,
            layers=work.cost.layers,
            parameters=work.cost.parameters,
            machines=dict(Counter(machine.name for machine in members)),
            memory_bytes=max(map(work.taken_bytes, members)),
            frozen_bytes=frozen_bytes(setting.model, part),
            state_bytes=work.cost.parameters * setting.run.state.bytes_per_parameter,
            averaged_bytes=work.cost.parameters * CODECS[setting.run.sent_codec].bytes_per_number,
            terms=terms,
            bottleneck=number == best.prediction.bottleneck,
        )
        for number, (work, part, members, terms) in enumerate(
            zip(best.run.stages, parts, best.placement, best.prediction.stages, strict=True)
        )
    ]
    used = sum(len(members) for members in best.placement)
    cost = _cost(setting, best, tokens)
    return Answer(
        parameters=sum(line.parameters for line in stages),
        sequences=setting.sequences,
        microbatches=setting.microbatches,
        tokens_per_step=setting.microbatches * setting.sequences * setting.model.context,
        machines=len(machines),
        used=used,
        best=row(best, best),
        prediction=best.prediction,
        stages=stages,
        alternatives=[row(each, best) for each in found],
        cost=cost,
        notes=list(_notes(setting, len(machines) - used, best, cost)),
    )


def _cost(setting: Setting, best: Alternative, tokens: int | None) -> Cost:
    assert best.prediction is not None  # (best_of)
    per_step = setting.microbatches * setting.sequences * setting.model.context
    wanted = tokens or setting.steps * per_step
    steps = wanted / per_step
    return Cost(
        tokens=wanted,
        steps=steps,
        seconds=wanted / best.prediction.tokens_per_s,
        sent_bytes=steps * max(terms.sent_bytes for terms in best.prediction.stages),
        received_bytes=steps * max(terms.received_bytes for terms in best.prediction.stages),
    )


def _notes(setting: Setting, idle: int, best: Alternative, cost: Cost) -> Iterator[str]:
    """Yield the limits of the plan's validity."""
    if best.replicas < setting.run.replicas:
        yield (
            f"too few machines for redundancy {setting.run.replicas}: some stage has "
            f"{best.replicas}"
        )
    rule = RULES[setting.run.rule]
    if best.replicas < rule.replicas:
        fewer = "no step may lose one" if rule.secret else "it bounds norms and finds no liar"
        fewer = "there is one sum of all, and it finds no liar" if rule.buckets > 1 else fewer
        yield (
            f"{setting.run.rule}: some stage has {best.replicas} replicas, and with fewer "
            f"than {rule.replicas} {fewer}"
        )
    if setting.run.audit:
        yield f"audits: {setting.run.audit} % of the work is done twice, by idle machines first"
        if best.replicas < 3:
            yield f"audits: some stage has {best.replicas} replicas; fewer than 3 expel nobody"
    if idle:
        yield f"not used: {plural(idle, 'machine')}, too small, or more than a round takes"
    if setting.manifest is None:
        yield (
            f"the run reads {cost.tokens:,.0f} tokens: bring {cost.tokens / MANY_TIMES:,.0f} or "
            f"more, or it reads them more than {MANY_TIMES} times, which teaches less than new text"
        )
    if cost.seconds > LONG_S:
        yield (
            f"it takes {human_duration(cost.seconds)}: more or faster machines, fewer tokens "
            "(--tokens shows what they take), or a smaller model"
        )
    if setting.manifest is None and setting.model.vocab != BYTES:
        yield f"for a tokenizer of {setting.model.vocab:,} tokens; --vocab plans for another"
    if setting.manifest is not None:
        yield (
            "the manifest's own cut costs what its founder measured; other cuts are estimated "
            "from it"
        )
        if words := describe_mixture(setting.manifest, cost.steps):
            yield words
        yield from warn_of_repeats(setting.manifest, cost.steps)

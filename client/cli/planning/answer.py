"""The answer of ``volunteer plan``: the best plan, the compared ones, and its costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from client.cli.founding.fitting import devices_that_cut, what_is_smaller
from client.cli.founding.outlook import LONG_S
from client.cli.founding.presets import BYTES
from client.cli.planning.machines import Kind, ThisMachine, machines_of
from client.cli.terminal.mixture_text import MANY_TIMES, describe_mixture, warn_of_repeats
from client.cli.terminal.output import human_duration
from client.errors import UserError
from client.plan import compare
from client.plan.compare import Alternative, Terms
from client.plan.machines import Machine, StageWork
from client.plan.model import COSTS_NOTHING, Placement, Prediction, StageTerms
from client.quantities import plural
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import frozen_bytes, slices
from protocol.manifest import WIRE_BYTES_PER_ELEMENT
from protocol.matching.averaging import MICRO, Averaging, Line, second_stage

if TYPE_CHECKING:
    from client.cli.planning.setting import Setting

JOULES_PER_KWH = 3.6e6
WAYS_OUT = {
    compare.TOO_MANY: "use fewer --microbatches, or a larger --microbatch",
    COSTS_NOTHING: "ask the swarm's founder to found it again with measured costs",
}
"""Advice by the limiting term, where machines and memory suffice."""


class CutLine(Struct, frozen=True):
    """How the devices of machines share a stage."""

    machine: str
    devices: int
    device_bytes: float
    """Memory of each."""
    host_bytes: float
    """What the first keeps in its host's memory; 0 where it lies in the devices'."""


class StageLine(Struct, frozen=True):
    """One stage of the best plan."""

    stage: int
    layers: int
    parameters: int
    machines: list[str]
    memory_bytes: float
    """Of a machine that has it, or of each of its devices."""
    frozen_bytes: int
    """Of weights beside adapters; 0 where everything is trained."""
    state_bytes: int
    """Of what is trained, with the optimizer's: what a newcomer copies, and a checkpoint has."""
    averaged_bytes: float
    """Of a replica's contribution to a step."""
    terms: StageTerms
    bottleneck: bool
    cuts: list[CutLine]
    """One for each kind of machine that cuts it over its devices."""


class Row(Struct, frozen=True):
    """One of the compared plans."""

    stages: int
    microbatch: int
    """Sequences."""
    microbatches: int
    """Per step."""
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
    kwh: float | None
    """Energy of the machines with known power; None without any."""
    price: float | None
    """None without a price or watts."""


class Answer(Struct, frozen=True):
    """Answer of ``volunteer plan --json``. Rates that nothing limits are null."""

    parameters: int
    tokens_per_step: int
    machines: int
    used: int
    best: Row
    prediction: Prediction
    stages: list[StageLine]
    alternatives: list[Row]
    cost: Cost
    notes: list[str]
    schema_version: int = 1


def row(each: Alternative, best: Alternative | None) -> Row:
    """Return one line of the comparison."""
    found = each.prediction
    plain = Row(
        each.stages, each.sequences, each.microbatches, each.replicas, each is best, each.why
    )
    if found is None:
        return plain
    return Row(
        each.stages,
        each.sequences,
        each.microbatches,
        each.replicas,
        each is best,
        "",
        found.tokens_per_s,
        found.limit,
        found.efficiency,
        found.in_flight,
        found.step_s,
    )


def answer(
    setting: Setting,
    kinds: Sequence[Kind],
    here: ThisMachine,
    tokens: int | None,
    price: float | None,
) -> Answer:
    """Compare the possible plans and return the best.

    Args:
        setting: the run to plan.
        kinds: the machines.
        here: this machine, for values that ``kinds`` leave out.
        tokens: tokens to train; None: those of the run.
        price: of a kWh, in any currency; None: not given.

    Raises:
        UserError: the machines cannot train the model.
    """
    setting.fewest(sum(kind.count for kind in kinds))  # said before anything is measured
    works = setting.works({kind.device_count(here) for kind in kinds})
    usual = setting.only_sequences or setting.sequences
    machines = machines_of(tuple(kinds), here, lambda: works.flops_per_token(usual))
    terms = Terms(
        sequences_per_step=setting.sequences_per_step,
        context=setting.model.context,
        averaging_bytes_per_parameter=WIRE_BYTES_PER_ELEMENT[setting.run.sent_codec],
        delayed=setting.run.delayed_update,
        redundancy=setting.run.replicas,
    )
    counts = setting.counts(len(machines))
    found = compare.alternatives(machines, works, terms, counts, setting.sizes())
    best = compare.best_of(found, setting.run.replicas)
    if best is None:
        raise _no_plan(found, setting.model)
    return _tell(setting, machines, found, best, tokens, price)


def _no_plan(found: Sequence[Alternative], model: ModelSpec) -> UserError:
    reasons = [each.why for each in found if each.why]
    problem = reasons[-1] if reasons else "no microbatch of this model fits a frame"
    usual = "add machines or memory, allow more --stages, or choose a smaller model"
    if problem.startswith(compare.ONE_LAYER):
        usual = f"{what_is_smaller(model)}; or add memory{devices_that_cut(model)}"
    words = f"these machines cannot train it together; {problem}"
    return UserError(words, WAYS_OUT.get(problem, usual))


def _tell(
    setting: Setting,
    machines: Sequence[Machine],
    found: Sequence[Alternative],
    best: Alternative,
    tokens: int | None,
    price: float | None,
) -> Answer:
    assert best.prediction is not None and best.run is not None  # noqa: PT018  (best_of)
    parts = slices([work.cost.layers for work in best.run.stages])
    stages = [
        StageLine(
            stage=number,
            layers=work.cost.layers,
            parameters=work.cost.parameters,
            machines=[machine.name for machine in members],
            memory_bytes=max(map(work.taken_bytes, members)),
            frozen_bytes=frozen_bytes(setting.model, part),
            state_bytes=work.cost.parameters * setting.run.state.bytes_per_parameter,
            averaged_bytes=work.cost.parameters * WIRE_BYTES_PER_ELEMENT[setting.run.sent_codec],
            terms=terms,
            bottleneck=number == best.prediction.bottleneck,
            cuts=_cuts(work, members),
        )
        for number, (work, part, members, terms) in enumerate(
            zip(best.run.stages, parts, best.placement, best.prediction.stages, strict=True)
        )
    ]
    rows = [row(each, best) for each in found]
    used = sum(len(members) for members in best.placement)
    cost = _cost(setting, best, tokens, price)
    return Answer(
        parameters=sum(line.parameters for line in stages),
        tokens_per_step=setting.sequences_per_step * setting.model.context,
        machines=len(machines),
        used=used,
        best=row(best, best),
        prediction=best.prediction,
        stages=stages,
        alternatives=rows,
        cost=cost,
        notes=list(_notes(setting, len(machines) - used, best, cost, price)),
    )


def _cuts(work: StageWork, members: Sequence[Machine]) -> list[CutLine]:
    return [
        CutLine(
            machine=each.name,
            devices=cut.devices,
            device_bytes=work.taken_bytes(each),
            host_bytes=cut.host_bytes if each.host_bytes else 0.0,
        )
        for each in dict.fromkeys(members)
        if (cut := work.cut_by(each)) is not None
    ]


def _cost(setting: Setting, best: Alternative, tokens: int | None, price: float | None) -> Cost:
    assert best.prediction is not None  # (best_of)
    per_step = setting.sequences_per_step * setting.model.context
    wanted = tokens or setting.steps * per_step
    steps = wanted / per_step
    seconds = wanted / best.prediction.tokens_per_s
    watts = sum(machine.watts for members in best.placement for machine in members)
    kwh = watts * seconds / JOULES_PER_KWH if watts else None
    return Cost(
        tokens=wanted,
        steps=steps,
        seconds=seconds,
        sent_bytes=steps * max(terms.sent_bytes for terms in best.prediction.stages),
        received_bytes=steps * max(terms.received_bytes for terms in best.prediction.stages),
        kwh=kwh,
        price=None if kwh is None or price is None else kwh * price,
    )


def _notes(
    setting: Setting, idle: int, best: Alternative, cost: Cost, price: float | None
) -> Iterator[str]:
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
    yield from _second_stages(setting, best)
    if any(work.cut_by(m) for work, ms in _placed(best) for m in ms):
        yield "what devices of one machine send each other is not in the model"
    if idle:
        yield f"not used: {plural(idle, 'machine')}, too small, or of no help to the speed"
    if price is not None and cost.kwh is None:
        yield "no energy figure: pass a machine's power with --watts, or in the table"
    silent = sum(not machine.watts for members in best.placement for machine in members)
    if silent and cost.kwh is not None:
        yield f"energy: machines without watts in the table count as 0 W: {silent}"
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


def _second_stages(setting: Setting, best: Alternative) -> Iterator[str]:
    """Say how many machines would hold a stage beside their own, which evens out speeds and takes
    over at once when one dies, and what averaging it costs those that would not."""
    assert best.prediction is not None and best.run is not None  # noqa: PT018  (best_of)
    costs = [work.cost for work in best.run.stages]
    if len(costs) < 2 or not setting.run.dual_homing:
        return
    homes = [[_line(machine) for machine in members] for members in best.placement]
    rates = [[work.rate(machine) for work in best.run.stages] for machine in _all(best.placement)]
    averaging = Averaging(
        best.run.microbatches, best.run.averaging_bytes_per_parameter, best.run.delayed
    )
    trades = [
        second_stage(
            averaging,
            costs,
            homes,
            lowest=MICRO * min(stage.rate_per_s for stage in best.prediction.stages),
            fair=MICRO * sum(map(max, rates)) / len(costs),
            line=line,
            stages=(home, home + 1 if home + 1 < len(costs) else home - 1),
        )
        for home, lines in enumerate(homes)
        for line in lines
    ]
    refused = [trade for trade in trades if not trade.is_worth(held=False)]
    if refused:
        worst = max(refused, key=lambda trade: trade.with_it_s / trade.without_s)
        yield (
            f"{len(refused)} of {len(trades)} machines hold no second stage, because of its "
            f"averaging: {worst}"
        )


def _line(machine: Machine) -> Line:
    return Line(min(machine.upload_bytes_per_s, machine.download_bytes_per_s), machine.flop_per_s)


def _placed(best: Alternative) -> Iterator[tuple[StageWork, Sequence[Machine]]]:
    assert best.run is not None  # (best_of)
    return zip(best.run.stages, best.placement, strict=True)


def _all(placement: Placement) -> Iterator[Machine]:
    return (machine for members in placement for machine in members)

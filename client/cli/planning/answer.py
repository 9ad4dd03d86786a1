"""The answer of ``volunteer plan``: the ways to train with given machines, and the best of them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from client.cli.founding.fitting import what_is_smaller
from client.cli.founding.outlook import LONG_S, warn_of_few
from client.cli.planning.run import EXACT, LOCAL, NARROW, Method, PlannedRun
from client.cli.terminal.mixture_text import MANY_TIMES, warn_of_repeats
from client.cli.terminal.swarm_text import memory_words
from client.errors import UserError
from client.plan.cuts import ONE_LAYER, Alternative, alternative, best_of
from client.plan.model import COSTS_NOTHING, Limit, Machine, fits
from client.plan.rounds import ENOUGH_ROUNDS, NARROW_PERCENT, are_worth_it, gap_percent, paced
from client.quantities import plural
from client.views.text import aligned
from client.views.words import count
from client.views.words import duration as human_duration
from client.views.words import size as human_bytes
from model_zoo.specs.optimizer import OPTIMIZERS
from protocol.manifest import Manifest

DAY_S: Final = 86_400
HELP: Final[dict[Limit, str]] = {
    "compute": "computing: faster or more machines would help most",
    "link": "links: wider lines, larger stages or a smaller boundary codec would help most",
    "latency": "filling and draining the pipeline: more microbatches a step, fewer stages or "
    "nearer machines would help most",
    "averaging": "averaging: more tokens a step or round, or wider lines, would help most",
}
"""What limits, and the remedy."""


class Way(Struct, frozen=True):
    """A way to average, in its best cut; one that is impossible has only its names and why."""

    name: str
    boundary_codec: str
    averaging_codec: str
    chosen: bool = False
    why: str = ""
    """The reason why it is impossible; empty if it is possible."""
    stages: int = 0
    replicas: int = 0
    """Of the stage that has the fewest."""
    sequences: int = 0
    """Of a microbatch."""
    microbatches: int = 0
    """Of a step, or a round."""
    inner_microbatches: int = 0
    """Local rounds: of a volunteer for each of its own steps; 0: all average in every step."""
    tokens_per_step: int = 0
    step_s: float = 0.0
    """Of a step, or a round."""
    limit: Limit = "compute"
    """What takes most of it."""
    tokens_per_s: float = 0.0
    share: float = 0.0
    """Of what all machines would do if each could train the whole model by itself."""
    memory_bytes: float = 0.0
    """That the largest stage needs of a machine, of a GPU beside ``host_memory_bytes`` of its
    host's."""
    host_memory_bytes: float = 0.0
    sent_bytes_per_day: float = 0.0
    """Of the volunteer that sends most."""
    loss_percent: float = 0.0
    """By how much the loss on held-out text is higher than with exact averaging after as many
    tokens; of small models, and a bound where a run has more rounds than were measured
    (`client.plan.rounds`)."""


class Cost(Struct, frozen=True):
    """The costs of training a number of tokens in the best way."""

    tokens: int
    steps: float
    seconds: float
    sent_bytes: float
    """Of the volunteer that sends most."""


class Plan(Struct, frozen=True):
    """Answer of ``volunteer plan --json``."""

    parameters: int
    """That are trained."""
    machines: int
    used: int
    alone_tokens_per_s: float
    """Of all machines together, if each trained the whole model by itself."""
    holds_alone: bool
    """Whether a machine has the memory for that."""
    best: Way
    ways: list[Way]
    cost: Cost
    notes: list[str]


def answer(run: PlannedRun, machines: Sequence[Machine], tokens: int | None) -> Plan:
    """Predict every way in every cut, of so many tokens (None: those of the run), and return the
    best.

    Raises:
        UserError: the machines cannot train the model.
    """
    wanted = tokens or run.manifest.steps * run.manifest.tokens_per_step
    step_tokens, found = run.manifest.tokens_per_step, {}
    rounds = partial(paced, step_tokens=step_tokens, tokens=wanted, microbatches=run.microbatches)
    for method in run.methods:
        redundancy = method.manifest.policy.redundancy
        pace = rounds if method.local else None
        cuts = [alternative(machines, each, redundancy, pace) for each in method.runs]
        found[method.name] = best_of(cuts, redundancy) or cuts[-1]
    chosen = _chosen(run, found)
    best = found[chosen]
    if best.prediction is None:
        raise _no_plan(run, best.why)
    alone = sum(machine.flop_per_s for machine in machines) / max(run.flops_per_token, 1e-30)
    ways = {each.name: _way(run, each, found[each.name], alone, wanted) for each in run.methods}
    way = ways[chosen] = replace(ways[chosen], chosen=True)
    seconds = wanted / way.tokens_per_s
    sent_bytes = way.sent_bytes_per_day * seconds / DAY_S
    cost = Cost(wanted, wanted / way.tokens_per_step, seconds, sent_bytes)
    used = sum(map(len, best.placement))
    manifest = next(each.manifest for each in run.methods if each.name == chosen)
    whole = [one.stages[0] for each in run.methods for one in each.runs if len(one.stages) == 1]
    return Plan(
        parameters=sum(load.cost.parameters for load in best.run.stages),
        machines=len(machines),
        used=used,
        alone_tokens_per_s=alone,
        holds_alone=any(fits(load, machine) for load in whole for machine in set(machines)),
        best=way,
        ways=list(ways.values()),
        cost=cost,
        notes=list(_notes(manifest, len(machines) - used, way, cost, founded=run.founded)),
    )


def _chosen(run: PlannedRun, found: Mapping[str, Alternative]) -> str:
    """Return the way that the run averages: the one that was asked for, else as `create` does."""
    if run.averaging is not None:
        return run.averaging
    exact, local = found[EXACT].prediction, found[LOCAL].prediction
    if exact is None or local is None:
        return EXACT if local is None else LOCAL
    return LOCAL if are_worth_it(exact, local) else EXACT


def _no_plan(run: PlannedRun, problem: str) -> UserError:
    advice = "add machines or memory, allow more --stages, or choose a smaller model"
    if problem.startswith(ONE_LAYER):
        advice = f"{what_is_smaller(run.manifest.model)}; or add memory"
    elif problem == COSTS_NOTHING:
        advice = "ask the swarm's founder to found it again"
    return UserError(f"these machines cannot train it together; {problem}", advice)


def _way(run: PlannedRun, method: Method, best: Alternative, alone: float, wanted: int) -> Way:
    """Return a row of the answer.

    Args:
        run: the run to plan.
        method: the way.
        best: its best cut; one that is impossible where all are.
        alone: tokens/s of all machines, each by itself.
        wanted: tokens of the run.
    """
    sent = method.manifest.boundary_codec, method.manifest.averaging_codec
    if best.prediction is None:
        return Way(method.name, *sent, why=best.why)
    cut, prediction = best.run, best.prediction
    per_step = cut.microbatches * cut.tokens_per_microbatch
    rounds = wanted / per_step
    muon = OPTIMIZERS[method.manifest.optimizer.name].by_matrix
    loss = gap_percent(rounds, best.replicas, muon=muon) if method.local else 0.0
    narrow = method.manifest.boundary_codec == NARROW and len(cut.stages) > 1
    largest = max(cut.stages, key=lambda load: load.cost.memory_bytes)
    hosted = largest.hosted_bytes and any(one.host_bytes for part in best.placement for one in part)
    return Way(
        *(method.name, *sent),
        stages=len(cut.stages),
        replicas=best.replicas,
        sequences=cut.tokens_per_microbatch // run.manifest.model.context,
        microbatches=cut.microbatches,
        inner_microbatches=cut.inner_microbatches,
        tokens_per_step=per_step,
        step_s=prediction.step_s,
        limit=prediction.limit,
        tokens_per_s=best.tokens_per_s,
        share=best.tokens_per_s / alone,
        memory_bytes=largest.beside_host_bytes if hosted else largest.cost.memory_bytes,
        host_memory_bytes=largest.hosted_bytes if hosted else 0.0,
        sent_bytes_per_day=prediction.sent_bytes * DAY_S / prediction.step_s,
        loss_percent=loss + NARROW_PERCENT * narrow,
    )


def _notes(manifest: Manifest, idle: int, way: Way, cost: Cost, *, founded: bool) -> Iterator[str]:
    """Yield the limits of the plan's validity."""
    replicas, redundancy = way.replicas, manifest.policy.redundancy
    if replicas < redundancy:
        yield f"too few machines for redundancy {redundancy}: some stage has {replicas}"
    yield from warn_of_few(manifest, replicas)
    if way.inner_microbatches and cost.steps < ENOUGH_ROUNDS:
        tokens = cost.tokens * ENOUGH_ROUNDS / cost.steps
        yield (
            f"{cost.steps:,.0f} rounds are few: with more tokens, up to {tokens:,.0f} in "
            f"{ENOUGH_ROUNDS} rounds, the loss suffers less"
        )
    if idle:
        yield f"not used: {plural(idle, 'machine')}, too small, or more than a round takes"
    if founded:
        yield from warn_of_repeats(manifest, cost.steps)
    else:
        yield (
            f"to found this swarm: volunteer create --stages {way.stages} "
            f"--microbatch {way.sequences} --averaging {way.name} and the same flags for the model"
        )
        yield (
            f"the run reads {cost.tokens:,.0f} tokens: bring {cost.tokens / MANY_TIMES:,.0f} or "
            f"more, or it reads them more than {MANY_TIMES} times, which teaches less than new text"
        )
    if cost.seconds > LONG_S:
        yield (
            f"it takes {human_duration(cost.seconds)}: more or faster machines, fewer tokens "
            "(--tokens shows what they take), or a smaller model"
        )


def report(plan: Plan) -> Iterator[str]:
    """Yield the answer for people."""
    best, cost = plan.best, plan.cost
    step = "round" if best.inner_microbatches else "step"
    yield (
        f"best for {plural(plan.machines, 'machine')} and {plan.parameters:,} parameters: "
        f"{plural(best.stages, 'stage')} x {plural(best.replicas, 'replica')},"
    )
    yield (
        f"microbatches of {plural(best.sequences, 'sequence')}, {best.microbatches} a {step} of "
        f"{best.tokens_per_step:,} tokens"
    )
    if inner := best.inner_microbatches:
        yield f"local rounds: every {inner} microbatches a step of one's own"
    yield f"expected: {_tokens(best.tokens_per_s)}; a {step} takes {human_duration(best.step_s)}"
    yield f"limited by {HELP[best.limit]}"
    lends = f"--memory counts {human_bytes(best.memory_bytes)}"
    if best.host_memory_bytes:
        lends += f", and --host-memory {human_bytes(best.host_memory_bytes)}"
    taken = memory_words([best.memory_bytes + best.host_memory_bytes])
    yield f"memory of a volunteer: {taken}, of which {lends}"
    yield f"{cost.tokens:,} tokens ({cost.steps:,.0f} {step}s) take {human_duration(cost.seconds)}"
    yield f"  traffic per volunteer at most: {human_bytes(cost.sent_bytes)} sent"
    if len(plan.ways) > 1:
        yield ""
        yield from _table(plan)


def _table(plan: Plan) -> Iterator[str]:
    """Yield the ways to average side by side."""
    many = plural(plan.machines, "machine")
    yield f"ways to average; {many} apart would train {_tokens(plan.alone_tokens_per_s)}" + (
        ":" if plan.holds_alone else ", if one could hold the model:"
    )
    head = ("", "averaging", "stages", "tokens/s", "of that", "sent a day", "loss")
    rows = [
        (
            *("*" if each.chosen else "", each.name, f"{each.stages} x {each.replicas}"),
            f"{each.tokens_per_s:,.0f}"
            if each.tokens_per_s >= 1000
            else f"{each.tokens_per_s:.4g}",
            f"{each.share:.0%}",
            human_bytes(each.sent_bytes_per_day),
            _loss(each, plan.cost.tokens / each.tokens_per_step),
        )
        if not each.why
        else ("", each.name, *("-" * 5))
        for each in plan.ways
    ]
    yield from aligned(head, rows)
    yield from (f"{each.name}: {each.why}" for each in plan.ways if each.why)


def _loss(way: Way, rounds: float) -> str:
    """Return the price in learning; of more rounds than were measured it is a bound."""
    if not way.loss_percent:
        return "0"
    return f"{'+' if rounds <= ENOUGH_ROUNDS else '<'}{way.loss_percent:.1f} %"


def _tokens(per_second: float) -> str:
    return f"{count(per_second)} tokens/s"

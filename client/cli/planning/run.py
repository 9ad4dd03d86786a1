"""The run that ``volunteer plan`` predicts: a founded swarm's, or one described by flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from client.cli.founding.averaging import founded_run, run_of
from client.cli.founding.options import ModelChoices, PipelineChoices, PlanChoices
from client.cli.founding.presets import PRESETS
from client.cli.reach.home import Home
from client.cli.reach.target import find_swarm, with_manifest
from client.compute.memory import USUAL_GRAPHS
from client.errors import ExitCode, UserError
from client.plan.cuts import stage_counts
from client.plan.model import Placement, Run
from client.plan.rounds import paced
from client.quantities import plural
from client.train.workers.opening import stage_need
from model_zoo.specs.codec import BoundaryCodec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import DEFAULT, OPTIMIZERS
from protocol.limits import MAX_STAGES
from protocol.manifest import Manifest, fits_a_frame

if TYPE_CHECKING:
    from client.cli.founding.pricing import Prices  # which imports torch

LARGER_MICROBATCHES = (1, 2, 3, 4)
"""Times as many sequences a microbatch that are tried in local rounds, for the protocol bounds the
microbatches of a round."""
EXACT, LOCAL = "exact", "local"
NARROW: Final = "s4"
"""The narrowest boundaries."""


@dataclass(frozen=True)
class Method:
    """A way to average, and the cuts that are compared: runs with their stages."""

    name: str
    runs: tuple[Run, ...]
    boundary_codec: str
    averaging_codec: str
    muon: bool
    """Whether updates are made matrix by matrix."""
    local: bool = False

    @property
    def narrow(self) -> bool:
        """Whether its boundaries are the narrowest."""
        return self.boundary_codec == NARROW


@dataclass(frozen=True)
class PlannedRun:
    """The run, and the ways to average that are compared."""

    model: ModelSpec
    methods: tuple[Method, ...]
    averaging: str | None
    """The way that is chosen; None: by the machines' lines."""
    tokens_per_step: int
    """Of a step of the exact run."""
    steps: int
    """Of the exact run."""
    rule: str
    """Of aggregation."""
    audited: bool
    redundancy: int
    microbatches: int | None = None
    """Of a step or round, if they are chosen already."""
    manifest: Manifest | None = None
    """None: not founded yet."""

    @property
    def flops_per_token(self) -> float:
        """The cost of the whole model for one token, which is the same in every cut."""
        run = self.methods[0].runs[0]
        return sum(load.cost.flops for load in run.stages) / run.tokens_per_microbatch

    def paced(self, tokens: int, run: Run, placement: Placement) -> Run:
        """Return a run of local rounds over so many tokens with the length of its rounds."""
        of_one = run.tokens_per_microbatch
        usual = max(1, self.tokens_per_step // of_one)
        return paced(run, placement, usual, max(1, tokens // of_one), self.microbatches)


def chosen(run: PlanChoices, model: ModelChoices, machines: int) -> PlannedRun:
    """Return the run that flags describe, cut in several ways for so many machines.

    Raises:
        UserError: they contradict each other, or no cut is possible.
    """
    from client.cli.founding.manifest import choose_model, usage

    preset = PRESETS[run.preset]
    sequences = run.sequences or preset.sequences_per_microbatch
    vocab = run.vocab or preset.model.vocab
    spec = choose_model(preset, model, vocab, run.stages)
    counts = possible_counts(spec, run.stages, machines)
    if not fits_a_frame(spec, sequences):
        problem = f"a microbatch of {sequences} sequences is too large for one message"
        raise UserError(problem, "take a smaller --microbatch", ExitCode.USAGE)
    if run.averaging == "local" and run.audit:
        raise usage("with --averaging local there are no audits")
    if model.lora is not None:
        run = replace(run, optimizer=run.optimizer or DEFAULT)
    models = {count: choose_model(preset, model, vocab, count) for count in counts}
    usual = run.microbatches or preset.microbatches_per_step
    try:
        methods = tuple(_methods(run, models, sequences, usual))
    except ValueError as error:
        raise usage(str(error)) from error
    return PlannedRun(
        model=spec,
        methods=methods,
        averaging={"every-step": EXACT, "local": LOCAL, None: None}[run.averaging],
        tokens_per_step=usual * sequences * spec.context,
        steps=preset.steps,
        rule=run.rule,
        audited=bool(run.audit),
        redundancy=run.replicas,
        microbatches=run.microbatches,
    )


def _methods(
    run: PlanChoices, models: dict[int, ModelSpec], sequences: int, usual: int
) -> Iterator[Method]:
    """Yield the ways to average: exact, in local rounds, and those with narrower boundaries."""
    from client.cli.founding.manifest import measured_prices

    spec = models[max(models)]
    prices = measured_prices(spec, run, sequences)
    exact = run if run.averaging != "local" else replace(_unrounded(run), averaging=None)
    yield Method(
        EXACT,
        tuple(_runs(exact, models, sequences, usual, prices)),
        *(exact.boundary_codec, exact.sent_codec, OPTIMIZERS[exact.update_rule].by_matrix),
    )
    ways: list[tuple[str, BoundaryCodec]] = [(LOCAL, run.boundary_codec)]
    if run.boundary_codec != NARROW:
        ways.append((f"local, {NARROW}", NARROW))
    for name, codec in ways:
        local = replace(run, averaging="local", boundary_codec=codec, audit=None)
        sizes = [sequences]
        if prices is None and run.sequences is None:
            sizes = [n for each in LARGER_MICROBATCHES if fits_a_frame(spec, n := each * sequences)]
        runs = [each for size in sizes for each in _runs(local, models, size, usual, prices)]
        muon = OPTIMIZERS[local.update_rule].by_matrix
        yield Method(name, tuple(runs), codec, local.sent_codec, muon, local=True)


def _unrounded(run: PlanChoices) -> PlanChoices:
    return replace(run, inner_microbatches=None, outer_lr=None, outer_momentum=None)


def _runs(
    run: PipelineChoices,
    models: dict[int, ModelSpec],
    sequences: int,
    microbatches: int,
    prices: Prices | None,
) -> Iterator[Run]:
    """Yield the run in every cut."""
    from client.cli.founding.manifest import least_need, narrowed, price_stages

    for count, whole in models.items():
        costs, *_ = price_stages(whole, run, count, sequences, prices)
        layers, tokens = [cost.layers for cost in costs], sequences * whole.context
        spec = narrowed(whole, layers, run.boundary_width)
        needs = [
            least_need(spec, layers, stage, run, sequences, host=True) for stage in range(count)
        ]
        rules = run.update_rule, run.sent_codec
        found = run_of(spec, costs, *rules, microbatches, tokens, needs)
        yield replace(found, inner_microbatches=run.inner_microbatches or 0)


def possible_counts(spec: ModelSpec, only: int | None, machines: int) -> list[int]:
    """Return the numbers of stages to compare, before anything is measured.

    Args:
        spec: shape of the model.
        only: the number that was chosen.
        machines: the number of those that are to train it.

    Raises:
        UserError: the model is too large for any cut, for the chosen one, or for so few machines.
    """
    from client.cli.founding.fitting import check_stages, fewest_stages, impossible

    most = min(spec.layers, MAX_STAGES)
    if only is not None and only > most:
        problem = f"{plural(spec.layers, 'layer')} cannot be cut into {only} stages"
        raise UserError(problem, f"use at most --stages {most}", ExitCode.USAGE)
    if only is not None:
        check_stages(spec, only)
    fewest = fewest_stages(spec)
    if fewest is None:
        raise impossible(spec)
    if fewest > machines:
        problem = f"{spec.parameter_count:,} parameters need {fewest} stages or more"
        advice = f"plan for --machines {fewest} or more"
        raise UserError(f"{problem}, each of them a machine", advice)
    counts = {fewest, *(n for n in stage_counts(spec.layers, machines) if n > fewest)}
    return sorted(counts) if only is None else [only]


def founded(home: Home, text: str, run: PlanChoices, model: ModelChoices) -> PlannedRun:
    """Return a founded swarm's run, in its own cut.

    Args:
        home: of the volunteer that remembers the swarm.
        text: a ``.swarm`` file, or the name of a remembered swarm.
        run: flags of the run, none of which may be given.
        model: flags of the model's shape, none of which may either.

    Raises:
        UserError: it cannot be found, or a flag contradicts it.
    """
    found = with_manifest(find_swarm(home, text))
    if replace(run, measure=True) != PlanChoices() or model != ModelChoices():
        raise UserError(
            "--swarm fixes the model, its stages, tokens per step, codecs and redundancy",
            "leave --swarm out to plan for other values",
            ExitCode.USAGE,
        )
    return _of_manifest(found.manifest)


def _of_manifest(manifest: Manifest) -> PlannedRun:
    """Return the run that a manifest describes, in its one cut."""
    needs = [
        stage_need(manifest, stage, USUAL_GRAPHS, reruns_blocks=True, host=True)
        for stage in range(manifest.stage_count)
    ]
    local = manifest.local_rounds is not None
    method = Method(
        LOCAL if local else EXACT,
        (founded_run(manifest, needs),),
        *(manifest.boundary_codec, manifest.averaging_codec),
        muon=OPTIMIZERS[manifest.optimizer.name].by_matrix,
        local=local,
    )
    return PlannedRun(
        model=manifest.model,
        methods=(method,),
        averaging=method.name,
        tokens_per_step=manifest.microbatches_per_step * manifest.tokens_per_microbatch,
        steps=manifest.steps,
        rule=manifest.aggregation,
        audited=bool(manifest.audits),
        redundancy=manifest.policy.redundancy,
        microbatches=manifest.microbatches_per_step,
        manifest=manifest,
    )

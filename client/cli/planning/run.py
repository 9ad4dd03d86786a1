"""The run that ``volunteer plan`` predicts: a founded swarm's, or one described by flags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from client.cli.founding.averaging import founded_run, microbatch_sizes
from client.cli.founding.options import (
    ModelChoices,
    PipelineChoices,
    PlanChoices,
    admitted,
    usage,
)
from client.cli.founding.presets import PRESETS
from client.cli.reach.home import Home
from client.cli.reach.target import find_swarm, with_manifest
from client.errors import UserError
from client.plan.cuts import stage_counts
from client.plan.model import Run
from model_zoo.specs.codec import BoundaryCodec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import DEFAULT
from model_zoo.specs.tokens import BYTE_VOCAB
from protocol.manifest import Manifest, inconsistency

EXACT: Final = "every-step"
LOCAL: Final = "local"
"""Ways to average, as --averaging names them."""
NARROW: Final = "s4"
"""The narrowest boundaries."""


@dataclass(frozen=True)
class Method:
    """A way to average, and the cuts that are compared: runs with their stages."""

    name: str
    manifest: Manifest
    """In one of the cuts."""
    runs: tuple[Run, ...]

    @property
    def local(self) -> bool:
        """Whether volunteers take steps of their own."""
        return self.manifest.local_rounds is not None


@dataclass(frozen=True)
class PlannedRun:
    """The run, and the ways to average that are compared."""

    manifest: Manifest
    """Of the run with exact averaging, or of the founded one."""
    methods: tuple[Method, ...]
    founded: bool
    averaging: str | None
    """The way that is chosen; None: by the machines' lines."""
    microbatches: int | None = None
    """Of a step or round, if they are chosen already."""

    @property
    def flops_per_token(self) -> float:
        """The cost of the whole model for one token, which is the same in every cut."""
        run = self.methods[0].runs[0]
        return sum(load.cost.flops for load in run.stages) / run.tokens_per_microbatch


def chosen(run: PlanChoices, model: ModelChoices, machines: int) -> PlannedRun:
    """Return the run that flags describe, cut in several ways for so many machines.

    Raises:
        UserError: they contradict each other, or the model is too large for any cut, for the chosen
            one, or for so few machines.
    """
    from client.cli.founding.fitting import check_stages, fewest_stages
    from client.cli.founding.manifest import choose_model, drafted

    preset = PRESETS[run.preset]
    vocab = run.vocab or preset.model.vocab
    spec = choose_model(preset, model, vocab, run.stages)
    if run.stages is not None:
        check_stages(spec, run.stages)
    fewest = fewest_stages(spec)
    if fewest > machines:
        words = f"{spec.parameter_count:,} parameters need {fewest} stages or more"
        advice = f"plan for --machines {fewest} or more"
        raise UserError(f"{words}, each of them a machine", advice)
    more = (n for n in stage_counts(spec.layers, machines) if n > fewest)
    counts = [fewest, *more] if run.stages is None else [run.stages]
    if model.lora is not None:
        run = replace(run, optimizer=run.optimizer or DEFAULT)
    bytes_at_least = choose_model(preset, model, max(vocab, BYTE_VOCAB), counts[0])
    if problem := inconsistency(drafted(admitted(run, spec)[0], bytes_at_least, counts[0])):
        raise usage(problem, "see volunteer plan --help")
    models = {count: choose_model(preset, model, vocab, count) for count in counts}
    methods = tuple(_methods(run, models))
    return PlannedRun(
        manifest=methods[0].manifest,
        methods=methods,
        founded=False,
        averaging=EXACT if run.audit else run.averaging,
        microbatches=run.microbatches,
    )


def _methods(run: PlanChoices, models: dict[int, ModelSpec]) -> Iterator[Method]:
    """Yield the ways to average: exact, in local rounds, and those with narrower boundaries."""
    spec = models[max(models)]
    exact, _ = admitted(replace(run, averaging=EXACT, inner_microbatches=None), spec)
    yield _method(EXACT, exact, models, [run.sequences_per_microbatch])
    ways: list[tuple[str, BoundaryCodec]] = [(LOCAL, run.boundary_codec)]
    if run.boundary_codec != NARROW:
        ways.append((f"local, {NARROW}", NARROW))
    for name, codec in ways:
        local = replace(run, averaging=LOCAL, boundary_codec=codec, audit=None)
        local, _ = admitted(local, spec)
        yield _method(name, local, models, microbatch_sizes(local, spec))


def _method(
    name: str,
    run: PipelineChoices,
    models: dict[int, ModelSpec],
    sizes: Sequence[int],
) -> Method:
    """Return a way to average in every cut, with microbatches of each of these ``sizes``."""
    from client.cli.founding.manifest import drafted

    runs = []
    for sequences, (count, whole) in product(sizes, models.items()):
        draft = drafted(run, whole, count, sequences_per_microbatch=sequences)
        found = founded_run(draft, hosts=True)
        runs.append(replace(found, inner_microbatches=run.inner_microbatches or 0))
    return Method(name, draft, tuple(runs))


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
    if run != PlanChoices() or model != ModelChoices():
        raise usage(
            "--swarm fixes the model, its stages, tokens per step, codecs and redundancy",
            "leave --swarm out to plan for other values",
        )
    manifest = found.manifest
    name = EXACT if manifest.local_rounds is None else LOCAL
    method = Method(name, manifest, (founded_run(manifest, hosts=True),))
    return PlannedRun(manifest, (method,), True, name, manifest.microbatches_per_step)

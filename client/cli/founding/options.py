"""Groups of flags of ``create`` and ``plan`` as frozen dataclasses; None: as in the preset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Group, Parameter, Token, validators

from client.cli.founding.presets import PRESETS, PresetName
from client.errors import UsageError, UserError
from client.quantities import parse_percent
from model_zoo.specs import aggregation as aggregations
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.architecture import Base
from model_zoo.specs.codec import AveragingCodec, BoundaryCodec
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.optimizer import SCHEDULES, TRAINING
from model_zoo.specs.precision import DEFAULT as PRECISION
from model_zoo.specs.precision import Compute
from protocol.limits import LEAST_TO_CONVICT, MAX_MICROBATCHES_PER_STEP
from protocol.names import normal, purpose_problem

if TYPE_CHECKING:
    from model_zoo.specs.model import ModelSpec

    AggregationName = str
    ArchitectureName = str
    OptimizerName = str
    ScheduleName = str
else:
    AggregationName = Literal[tuple(RULES)]
    ArchitectureName = Literal[tuple(ARCHITECTURES)]
    OptimizerName = Literal[tuple(TRAINING)]
    ScheduleName = Literal[tuple(SCHEDULES)]

ROBUST = "centred-clipping"
"""Rule of a public swarm."""
AUDIT_PERCENT = 3
"""Of a public swarm's contributions."""
UNAUDITED = (
    "no audits: which experts a token goes to depends on rounding now and then, and an honest "
    "volunteer with another machine would seem to lie"
)
AT_MOST_ALL = validators.Number(gte=0, lte=100)


def _percent(_: object, given: Sequence[Token]) -> int:
    return parse_percent(given[0].value)


def _check_purpose(_: object, text: str) -> None:
    if problem := purpose_problem(normal(text)):
        raise ValueError(problem)


RUN = Group("The run", sort_key=1)
MODEL = Group("The model (default: the preset's)", sort_key=2)
OPTIMIZER = Group("The optimizer (default: the preset's)", sort_key=3)
POSITIVE = validators.Number(gte=1)
Count = Annotated[int, Parameter(validator=POSITIVE)]
ChosenOptimizer = Annotated[
    OptimizerName | None, Parameter(group=OPTIMIZER, parse=len(TRAINING) > 1)
]
OptionalCount = Annotated[int | None, Parameter(validator=POSITIVE)]
AveragingName = Literal["every-step", "local"]
NEW_MODEL_OPTIMIZER = "muon"
"""Of a model that begins with random weights."""
EVERY_STEP_CODEC: AveragingCodec = "s8"
LOCAL_CODEC: AveragingCodec = "q2"
UNRETURNED_CODEC: AveragingCodec = "q3"
"""In local rounds where a rule does not return what encoding takes from its result: q2 takes an
eighth of it."""


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class PipelineChoices:
    """What decides how fast a swarm trains: flags of ``plan``, too."""

    preset: PresetName = "tiny"
    """Ready-made shape and settings to start from."""
    sequences: Annotated[int | None, Parameter(name="--microbatch", validator=POSITIVE)] = None
    """Sequences per microbatch (default: the preset's; with local rounds up to four times it)."""
    microbatches: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=MAX_MICROBATCHES_PER_STEP))
    ] = None
    """Microbatches per step; with local rounds, per round (default: as many as suit this machine
    and its line)."""
    boundary_codec: BoundaryCodec = "s8"
    """Wire format of tensors between stages. s4 takes half the bytes of s8, and rounds gradients at
    random, so that nothing is lost on average."""
    boundary_width: OptionalCount = None
    """Numbers that a token is between two stages (default: the model's width). A quarter of the
    width learns almost as well, at a quarter of the bytes. Such a model can be sampled and measured
    here, and exported to no other program."""
    averaging_codec: AveragingCodec | None = None
    """Wire format of what volunteers of a stage average (default: s8, with local rounds q2, or q3
    where a rule bounds liars). q4, q3 and q2 take 4, 3 and 2 bits a number, and send later what
    they leave out; there are no audits with them."""
    aggregation: Annotated[AggregationName | None, Parameter(parse=len(RULES) > 1)] = None
    """How the gradients of a stage's volunteers are averaged (default: sum in a private swarm, else
    centred-clipping). sum: exactly. centred-clipping: from three volunteers a stage on, a lying
    minority moves the average little."""
    compute_dtype: Compute = PRECISION
    """Type of numbers in which passes compute. bf16 is for swarms of graphics cards; most
    processors are several times slower in it than in fp32. auto, where there are no audits: each
    card computes in bf16, each processor in fp32. Parameters stay fp32."""
    audit: Annotated[int | None, Parameter(converter=_percent, validator=AT_MOST_ALL)] = None
    """Share of the contributions to steps that another volunteer of the stage computes again, such
    as 3%, the default of a public swarm; 0, that of a private one: none. With three or more
    volunteers per stage, a majority expels a liar; with fewer nobody can be convicted."""
    private: bool = False
    """Admit only volunteers that a member has invited; whoever invites answers for them, and can
    expel them."""
    redundancy: OptionalCount = None
    """Volunteers that every stage should have (default: 3 with audits, which convict nobody with
    fewer, else 2)."""
    optimizer: ChosenOptimizer = None
    """The rule of the updates (default: muon; adamw for imported weights)."""
    averaging: Annotated[AveragingName | None, Parameter(group=OPTIMIZER)] = None
    """every-step: the volunteers of a stage average every gradient. local: each takes steps of its
    own, and they average these in rounds, for slow lines; without audits (default: local where
    averaging would take more than a tenth of the time)."""
    inner_microbatches: Annotated[OptionalCount, Parameter(group=OPTIMIZER)] = None
    """local: microbatches of a volunteer for each of its own steps (default: so many that a round
    has sixteen steps at most)."""

    @property
    def sequences_per_microbatch(self) -> int:
        """As chosen, else the preset's."""
        return self.sequences or PRESETS[self.preset].sequences_per_microbatch

    @property
    def microbatches_per_step(self) -> int:
        """As chosen, else the preset's."""
        return self.microbatches or PRESETS[self.preset].microbatches_per_step

    @property
    def rule(self) -> str:
        """Name of the aggregation rule."""
        return self.aggregation or aggregations.DEFAULT

    @property
    def replicas(self) -> int:
        """Volunteers that every stage should have."""
        return self.redundancy or (LEAST_TO_CONVICT if self.audit else 2)

    @property
    def sent_codec(self) -> AveragingCodec:
        """Wire format of gradients within a stage."""
        if self.averaging_codec is not None:
            return self.averaging_codec
        if self.averaging != "local":
            return EVERY_STEP_CODEC
        return UNRETURNED_CODEC if RULES[self.rule].robust else LOCAL_CODEC

    @property
    def update_rule(self) -> str:
        """Name of the optimizer of weights that begin at random."""
        return self.optimizer or NEW_MODEL_OPTIMIZER

    @property
    def local_rounds(self) -> LocalRounds | None:
        """How volunteers step by themselves; None: they average in every step.

        Raises:
            UserError: a number is out of range, or belongs to local rounds and there are none.
        """
        if self.averaging == "local":
            with refusals():
                return LocalRounds(self.inner_microbatches or 1)
        if self.inner_microbatches is not None:
            raise usage("inner_microbatches belongs to --averaging local")
        return None


Pipeline = TypeVar("Pipeline", bound=PipelineChoices)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class PlanChoices(PipelineChoices):
    """The run of ``plan``; several numbers of stages are compared."""

    stages: OptionalCount = None
    """Consider only this number of stages."""
    vocab: Annotated[int | None, Parameter(validator=POSITIVE)] = None
    """Tokens of the text's tokenizer (default: the preset's: 256 bytes, or as published)."""


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class RunChoices(PipelineChoices):
    """The model, its data, and the number of stages."""

    name: str | None = None
    """Name of the swarm, for people."""
    purpose: Annotated[str, Parameter(validator=_check_purpose)] = ""
    """What the model is for, in one line; whoever joins is shown it."""
    source: Annotated[Path | None, Parameter(name="--from")] = None
    """Begin with the model of a Hugging Face folder (config.json, safetensors) in place of random
    weights; the preset then gives the settings of the training alone."""
    data: str = "stdlib"
    """Training text: stdlib (Python's own source), a text file, a .jsonl or .parquet with "text"
    fields, packed as .gz or .zst or not, or a folder of volunteer data build."""
    tokenizer: str | None = None
    """Tokenizer of the text: bytes, a tokenizer.json, a folder with one, or train:16384 for a new
    one of so many tokens (default: that of --from, else bytes). A folder of volunteer data build
    brings its own."""
    stages: Count = 2
    """Stages to cut the model into; each needs a volunteer."""
    steps: OptionalCount = None
    """Optimizer updates until the run is done."""
    checkpoint_every: OptionalCount = None
    """Steps between checkpoints (default: 50; with local rounds, as many as have their tokens)."""
    evaluate_every: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None
    """Steps between versions whose loss on held-out text the swarm computes while it trains; 0:
    none (default: as many as cost it half a percent of its computing at most)."""
    seed: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1337
    """Seed of the weights and of the order of the data."""
    dual_homing: Annotated[bool, Parameter(negative="--no-dual-homing")] = True
    """Let volunteers with the memory for it hold two neighbouring stages."""
    measure: Annotated[bool, Parameter(negative="--no-measure")] = True
    """Measure this machine for a moment, to choose how to average and to say how long the run
    takes."""

    @property
    def swarm_name(self) -> str:
        """Name of the swarm: the one given, else what is trained on what."""
        begins = self.preset if self.source is None else short_name(str(self.source.absolute()))
        return self.name or f"{begins}-{short_name(self.data)}"


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class ModelChoices:
    """Shape of the model where it differs from the preset's."""

    architecture: ArchitectureName | None = None
    layers: OptionalCount = None
    width: OptionalCount = None
    heads: OptionalCount = None
    kv_heads: OptionalCount = None
    ffn_width: OptionalCount = None
    context: OptionalCount = None
    """Longest sequence in tokens (bytes)."""
    lora: OptionalCount = None
    """Freeze the weights of --from, and train adapters of this rank beside them (LoRA)."""
    lora_alpha: Annotated[float | None, Parameter(validator=validators.Number(gt=0))] = None
    """Weight of the adapters, which is divided by their rank (default: twice the rank)."""
    lora_targets: str | None = None
    """Linear layers that get an adapter, by the ends of their names in transformers: q_proj,v_proj
    (the default of such models), or all."""
    lora_base: Base | None = None
    """How the frozen weights are kept (default: bf16 if they were published so). int8 and nf4 pack
    the matrices of the layers in 8 and 4 bits: less memory, a little less exact."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RateChoices:
    """The learning rate over a run: flags of ``create`` and ``amend``."""

    lr: Annotated[float | None, Parameter(name=("--lr", "--learning-rate"))] = None
    """Highest learning rate."""
    min_lr: float | None = None
    """Last learning rate."""
    schedule: ScheduleName | None = None
    """How the learning rate falls after the warm-up: as a cosine, not at all (constant), or
    linearly at the end of the run (wsd: warm-up, stable, decay)."""
    warmup_steps: int | None = None
    """Steps in which the learning rate rises."""
    decay_from: int | None = None
    """wsd: step at which the learning rate begins to fall (default: before the last fifth)."""
    decay_steps: int | None = None
    """Step at which the learning rate is at its last (default: the end of the run)."""


@Parameter(name="*", group=OPTIMIZER)
@dataclass(frozen=True, kw_only=True)
class OptimizerChoices(RateChoices):
    """The optimizer's numbers where they differ from the preset's."""

    beta1: float | None = None
    beta2: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    """Largest norm of the whole model's gradient; 0: any."""


_FLAGS = {
    field.name: f"--{field.name.replace('_', '-')}"
    for choices in (RunChoices, ModelChoices, OptimizerChoices)
    for field in fields(choices)
    if "_" in field.name
}


def usage(problem: str, next_step: str = "see volunteer create --help") -> UserError:
    """Return the error for a wrong choice on the command line; it names fields by their flags."""
    words = re.sub(r"(?<![./\w])[a-z]\w*", lambda found: _FLAGS.get(found[0], found[0]), problem)
    return UsageError(words, next_step)


@contextmanager
def refusals(next_step: str = "see volunteer create --help") -> Iterator[None]:
    """Turn what a description of a model or a run refuses into an error for the founder."""
    try:
        yield
    except ValueError as error:
        raise usage(str(error), next_step) from error


def admitted(run: Pipeline, spec: ModelSpec) -> tuple[Pipeline, tuple[str, ...]]:
    """Return the choices with what strangers need, as far as the model allows it."""
    run = for_strangers(run)
    if run.audit and spec.experts is not None:
        return replace(run, audit=None), (UNAUDITED,)
    return run, ()


def for_strangers(run: Pipeline) -> Pipeline:
    """Return a public swarm's choices with a robust rule and audits, where nothing is chosen; what
    local rounds contribute cannot be audited."""
    if run.private:
        return run
    shared = run.microbatches_per_step >= RULES[ROBUST].robust_from
    return replace(
        run,
        aggregation=run.aggregation or (ROBUST if shared else None),
        audit=run.audit if run.audit is not None or run.averaging == "local" else AUDIT_PERCENT,
    )


def short_name(source: str) -> str:
    """Return the last part of a data source's path, at most 40 characters."""
    return source.rstrip("/").rsplit("/", 1)[-1][:40]

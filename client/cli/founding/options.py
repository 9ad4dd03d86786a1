"""Groups of flags of ``volunteer create`` as frozen dataclasses; None means: as in the preset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter, Token, validators

from client.cli.founding.presets import PresetName
from client.quantities import parse_percent
from model_zoo.specs import aggregation as aggregations
from model_zoo.specs import optimizer as optimizers
from model_zoo.specs import tokens
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.model import ARCHITECTURES
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.state import StateSpec
from model_zoo.specs.tokens import TOKENIZERS
from protocol.manifest import AveragingCodec, Codec

if TYPE_CHECKING:
    AggregationName = str
    ArchitectureName = str
    OptimizerName = str
    TokenizerName = str
else:
    AggregationName = Literal[tuple(RULES)]
    ArchitectureName = Literal[tuple(ARCHITECTURES)]
    OptimizerName = Literal[tuple(OPTIMIZERS)]
    TokenizerName = Literal[tuple(TOKENIZERS)]

AT_MOST_ALL = validators.Number(gte=0, lte=100)


def _percent(_: object, given: Sequence[Token]) -> int:
    return parse_percent(given[0].value)


RUN = Group("The run", sort_key=1)
MODEL = Group("The model (default: the preset's)", sort_key=2)
OPTIMIZER = Group("The optimizer (default: the preset's)", sort_key=3)
POSITIVE = validators.Number(gte=1)
Count = Annotated[int, Parameter(validator=POSITIVE)]
ChosenOptimizer = Annotated[OptimizerName, Parameter(group=OPTIMIZER, parse=len(OPTIMIZERS) > 1)]
OptionalCount = Annotated[int | None, Parameter(validator=POSITIVE)]


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class RunChoices:
    """The model, its data, and the number of stages."""

    preset: PresetName = "tiny"
    """Ready-made shape and settings to start from."""
    name: str | None = None
    """Name of the swarm, for people."""
    data: str = "stdlib"
    """Training text: stdlib (Python's own source), a text file, or a .jsonl with "text" fields."""
    tokenizer: Annotated[TokenizerName, Parameter(parse=len(TOKENIZERS) > 1)] = tokens.DEFAULT
    """Tokenizer of the text; it sets the size of the vocabulary."""
    stages: Count = 2
    """Stages to cut the model into; each needs a volunteer."""
    steps: OptionalCount = None
    """Optimizer updates until the run is done."""
    sequences: Annotated[int | None, Parameter(name="--microbatch", validator=POSITIVE)] = None
    """Sequences per microbatch."""
    microbatches: OptionalCount = None
    """Microbatches per step."""
    boundary_codec: Codec = "s8"
    """Wire format of tensors between stages."""
    averaging_codec: Codec = "s8"
    """Wire format of gradients within a stage."""
    aggregation: Annotated[AggregationName, Parameter(parse=len(RULES) > 1)] = aggregations.DEFAULT
    """How the gradients of a stage's volunteers are averaged: their exact sum; for strangers and
    three or more volunteers per stage, a rule that a lying minority moves little; or, for members
    who know each other and four or more per stage, secure: nobody sees another's, only the sum.
    Choose a robust rule or secure: what nobody sees, nobody can judge."""
    delayed_update: Annotated[bool, Parameter(negative="")] = False
    """Compute the next step while a step is averaged. Faster on slow lines with several volunteers
    per stage. Every update is one step late, which slows learning, most in the first steps."""
    audit: Annotated[int, Parameter(converter=_percent, validator=AT_MOST_ALL)] = 0
    """Share of the contributions to steps that another volunteer of the stage computes again, such
    as 3%; 0: none. With three or more volunteers per stage, a majority expels a liar."""
    redundancy: Count = 2
    """Volunteers that every stage should have."""
    checkpoint_every: Count = 50
    """Steps between checkpoints."""
    seed: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1337
    """Seed of the weights and of the order of the data."""
    private: bool = False
    """Admit only volunteers that have the invite."""
    vouched: bool = False
    """Admit only volunteers that a member has invited; whoever invites answers for them, and can
    expel them."""
    dual_homing: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=100))] = 40
    """Percentage of the volunteers, the faster ones, that hold two stages; 0: one each."""
    optimizer: ChosenOptimizer = optimizers.DEFAULT
    """The rule of the updates."""
    measure: Annotated[bool, Parameter(negative="--no-measure")] = True
    """Run the model for a moment to balance the stages; otherwise estimate from FLOPs."""

    @property
    def sent_codec(self) -> AveragingCodec:
        """Wire format of gradients within a stage, which a secret sum decides itself."""
        return "ring16" if RULES[self.aggregation].secret else self.averaging_codec

    @property
    def state(self) -> StateSpec:
        """The layout of every stage's state."""
        return StateSpec(self.optimizer, self.delayed_update)

    @property
    def swarm_name(self) -> str:
        """Name of the swarm: the one given, else what is trained on what."""
        return self.name or f"{self.preset}-{short_name(self.data)}"


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


@Parameter(name="*", group=OPTIMIZER)
@dataclass(frozen=True, kw_only=True)
class OptimizerChoices:
    """AdamW with warm-up and cosine decay where it differs from the preset's."""

    lr: float | None = None
    min_lr: float | None = None
    warmup_steps: int | None = None
    decay_steps: int | None = None
    beta1: float | None = None
    beta2: float | None = None
    weight_decay: float | None = None
    clip: float | None = None


def short_name(source: str) -> str:
    """Return the last part of a data source's path, at most 40 characters."""
    return source.rstrip("/").rsplit("/", 1)[-1][:40]

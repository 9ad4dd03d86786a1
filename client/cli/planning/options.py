"""Flags of ``volunteer plan`` in groups, as frozen dataclasses; None means: not given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter, validators

from client.cli.founding.options import (
    POSITIVE,
    AggregationName,
    OptimizerName,
    OptionalCount,
)
from client.cli.founding.presets import PresetName
from client.cli.planning.machines import MAX_MACHINES
from model_zoo.specs.aggregation import RULES
from model_zoo.specs.codec import Codec
from model_zoo.specs.optimizer import OPTIMIZERS
from protocol.limits import MAX_MICROBATCHES_PER_STEP

MACHINES = Group("The machines (what is left out is as this one, measured)", sort_key=1)
RUN = Group("The run", sort_key=2)
AtLeast0 = Annotated[float | None, Parameter(validator=validators.Number(gte=0))]
Above0 = Annotated[float | None, Parameter(validator=validators.Number(gt=0))]


@Parameter(name="*", group=MACHINES)
@dataclass(frozen=True, kw_only=True)
class MachineChoices:
    """Alike machines, or a table of different ones."""

    table: Path | None = None
    """TOML or JSON file of machines, instead of the flags of this group."""
    machines: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=MAX_MACHINES))
    ] = None
    """Number of machines (default: 4)."""
    gflops: Above0 = None
    """Speed of one machine in 1e9 FLOP/s, as volunteer bench measures it; of all its devices."""
    tokens_per_s: Above0 = None
    """Instead of --gflops: tokens/s of one machine that trains the whole model alone."""
    memory: str | None = None
    """Memory that one machine lends, such as 8GB; of several devices, that of one."""
    up: str | None = None
    """Upload of one machine, such as 20Mbit/s."""
    down: str | None = None
    """Download of one machine (default: this machine's, at least the upload)."""
    rtt_ms: AtLeast0 = None
    """Round trip between two machines in milliseconds (default: 0)."""


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class PlanChoices:
    """The run; what is not given is the preset's. Several numbers of stages are compared."""

    preset: PresetName | None = None
    """Ready-made shape and settings to start from (default: tiny)."""
    stages: OptionalCount = None
    """Consider only this number of stages."""
    sequences: Annotated[int | None, Parameter(name="--microbatch", validator=POSITIVE)] = None
    """Sequences of a microbatch."""
    microbatches: Annotated[
        int | None, Parameter(validator=validators.Number(gte=1, lte=MAX_MICROBATCHES_PER_STEP))
    ] = None
    """Microbatches per step."""
    boundary_codec: Codec | None = None
    """Wire format of tensors between stages (default: s8)."""
    averaging_codec: Codec | None = None
    """Wire format of gradients within a stage (default: s8)."""
    aggregation: Annotated[AggregationName | None, Parameter(parse=len(RULES) > 1)] = None
    """How the gradients of a stage's volunteers are averaged (default: their exact sum)."""
    delayed_update: Annotated[bool | None, Parameter(negative="")] = None
    """Assume the one-step-delayed update, which averages a step while the next one is computed."""
    redundancy: Annotated[int | None, Parameter(validator=POSITIVE)] = None
    """Volunteers that every stage should have (default: 2)."""
    optimizer: Annotated[OptimizerName | None, Parameter(parse=len(OPTIMIZERS) > 1)] = None
    """The rule of the updates (default: adamw)."""
    vocab: Annotated[int | None, Parameter(validator=POSITIVE)] = None
    """Tokens of the text's tokenizer (default: the preset's: 256 bytes, or as published)."""
    measure: Annotated[bool, Parameter(negative="--no-measure")] = True
    """Run parts of the model for some seconds; otherwise estimate from FLOPs."""

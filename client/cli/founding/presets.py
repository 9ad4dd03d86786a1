"""Ready-made model shapes and training settings that ``volunteer create`` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from model_zoo.specs.architecture import Experts
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.family import Size
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec

LONG_RUN = 20_000
"""Steps of a run whose loss is of interest."""


@dataclass(frozen=True)
class Preset:
    """A starting point; every number can be changed by a flag."""

    model: ModelSpec
    sequences_per_microbatch: int
    microbatches_per_step: int
    steps: int
    optimizer: OptimizerSpec
    tied: bool = False
    """Whether the published model's output projection is its embedding."""


def published(architecture: str, size: Size) -> Preset:
    """Return a model of a published ``size``, with the vocabulary that it was published with; a
    swarm has its tokenizer's in its place."""
    numbers = (*size[:5], size.context, size.vocab, size.theta)
    model = ModelSpec(architecture, *numbers, **size.switches)
    return Preset(model, size.sequences, size.microbatches, LONG_RUN, _long(size.lr), size.tied)


_SHORT = OptimizerSpec(lr=2e-3, min_lr=2e-4, warmup_steps=20, decay_steps=200)


def _long(lr: float) -> OptimizerSpec:
    return OptimizerSpec(lr=lr, min_lr=lr / 10, warmup_steps=500, decay_steps=LONG_RUN, beta2=0.95)


_TO_LEARN = {
    # Learns visibly in a few minutes on two CPU cores.
    "tiny": Preset(ModelSpec("gpt", 4, 128, 4, 4, 512, 128), 4, 16, 200, _SHORT),
    # nanoGPT's recipe for CPUs (12 sequences of 64 per update), whose losses are published.
    "nanogpt": Preset(
        ModelSpec("gpt", 4, 128, 4, 4, 512, 64),
        1,
        12,
        2000,
        OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=100, decay_steps=2000),
    ),
    # GPT-2 small's shape: 12 layers, width 768.
    "small": Preset(ModelSpec("gpt", 12, 768, 12, 12, 3072, 1024), 4, 64, LONG_RUN, _long(6e-4)),
    "llama-tiny": Preset(ModelSpec("llama", 4, 128, 4, 2, 352, 128), 4, 16, 200, _SHORT),
    # A mixture of 8 experts, of which each token passes 2.
    "mixture-tiny": Preset(
        ModelSpec("mixtral", 4, 128, 4, 2, 192, 128, experts=Experts(8, 2, balance=0.01)),
        4,
        16,
        200,
        _SHORT,
    ),
    "llama-small": Preset(
        ModelSpec("llama", 12, 768, 12, 4, 2048, 1024), 4, 64, LONG_RUN, _long(6e-4)
    ),
}
_PUBLISHED = {
    preset: published(family.name, size)
    for family in ARCHITECTURES.values()
    for preset, size in family.sizes.items()
}
PRESETS: dict[str, Preset] = _TO_LEARN | dict(
    sorted(_PUBLISHED.items(), key=lambda each: each[1].model.untied.parameter_count)
)
"""Small ones to begin with, then what families have published, small ones first."""

if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[tuple(PRESETS)]

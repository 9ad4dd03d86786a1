"""Ready-made model shapes and training settings that ``volunteer create`` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from model_zoo.specs.architecture import Experts
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.family import Size
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.tokens import BYTE_VOCAB

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


def gpt(layers: int, width: int, heads: int, context: int) -> ModelSpec:
    """Return a GPT over bytes: as many key heads as query heads, feed-forward 4 x width."""
    return ModelSpec("gpt", layers, width, heads, heads, 4 * width, context, BYTE_VOCAB)


def llama(layers: int, width: int, heads: int, kv_heads: int, ffn: int, context: int) -> ModelSpec:
    """Return a Llama-style model over bytes.

    Args:
        layers: number of layers.
        width: channels of a layer.
        heads: query heads.
        kv_heads: key and value heads.
        ffn: channels of the feed-forward part.
        context: longest sequence, tokens.
    """
    return ModelSpec("llama", layers, width, heads, kv_heads, ffn, context, BYTE_VOCAB)


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
    "tiny": Preset(gpt(4, 128, 4, 128), 4, 16, 200, _SHORT),
    # nanoGPT's recipe for CPUs (12 sequences of 64 per update), whose losses are published.
    "nanogpt": Preset(
        gpt(4, 128, 4, 64),
        1,
        12,
        2000,
        OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=100, decay_steps=2000),
    ),
    # GPT-2 small's shape: 12 layers, width 768.
    "small": Preset(gpt(12, 768, 12, 1024), 4, 64, LONG_RUN, _long(6e-4)),
    "llama-tiny": Preset(llama(4, 128, 4, 2, 352, 128), 4, 16, 200, _SHORT),
    # A mixture of 8 experts, of which each token passes 2.
    "mixture-tiny": Preset(
        replace(
            llama(4, 128, 4, 2, 192, 128),
            architecture="mixtral",
            experts=Experts(8, 2, balance=0.01),
        ),
        4,
        16,
        200,
        _SHORT,
    ),
    "llama-small": Preset(llama(12, 768, 12, 4, 2048, 1024), 4, 64, LONG_RUN, _long(6e-4)),
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

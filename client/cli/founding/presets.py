"""Ready-made model shapes and training settings that ``volunteer create`` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.tokens import TOKENIZERS

BYTES = TOKENIZERS["bytes"]
"""Vocabulary of byte-level tokens."""

PresetName = Literal["tiny", "nanogpt", "small", "llama-tiny", "llama-small"]


@dataclass(frozen=True)
class Preset:
    """A starting point; every number can be changed by a flag."""

    model: ModelSpec
    sequences_per_microbatch: int
    microbatches_per_step: int
    steps: int
    optimizer: OptimizerSpec


def gpt(layers: int, width: int, heads: int, context: int) -> ModelSpec:
    """Return a GPT over bytes: as many key heads as query heads, feed-forward 4 x width."""
    return ModelSpec("gpt", layers, width, heads, heads, 4 * width, context, BYTES)


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
    return ModelSpec("llama", layers, width, heads, kv_heads, ffn, context, BYTES)


PRESETS: dict[PresetName, Preset] = {
    # Learns visibly in a few minutes on two CPU cores.
    "tiny": Preset(
        gpt(4, 128, 4, 128),
        4,
        16,
        200,
        OptimizerSpec(lr=2e-3, min_lr=2e-4, warmup_steps=20, decay_steps=200),
    ),
    # nanoGPT's recipe for CPUs (12 sequences of 64 per update), whose losses are published.
    "nanogpt": Preset(
        gpt(4, 128, 4, 64),
        1,
        12,
        2000,
        OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=100, decay_steps=2000),
    ),
    # GPT-2 small's shape: 12 layers, width 768.
    "small": Preset(
        gpt(12, 768, 12, 1024),
        4,
        64,
        20_000,
        OptimizerSpec(lr=6e-4, min_lr=6e-5, warmup_steps=500, decay_steps=20_000, beta2=0.95),
    ),
    "llama-tiny": Preset(
        llama(4, 128, 4, 2, 352, 128),
        4,
        16,
        200,
        OptimizerSpec(lr=2e-3, min_lr=2e-4, warmup_steps=20, decay_steps=200),
    ),
    "llama-small": Preset(
        llama(12, 768, 12, 4, 2048, 1024),
        4,
        64,
        20_000,
        OptimizerSpec(lr=6e-4, min_lr=6e-5, warmup_steps=500, decay_steps=20_000, beta2=0.95),
    ),
}

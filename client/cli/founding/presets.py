"""Ready-made model shapes and training settings that ``volunteer create`` starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from model_zoo.specs.architecture import Experts, Rope
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.tokens import TOKENIZERS

BYTES = TOKENIZERS["bytes"]
"""Vocabulary of byte-level tokens."""

PresetName = Literal[
    "tiny",
    "nanogpt",
    "small",
    "llama-tiny",
    "mixture-tiny",
    "llama-small",
    "gpt2-124m",
    "smollm2-135m",
    "smollm2-360m",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "llama-3.2-1b",
    "olmo-2-1b",
    "smollm2-1.7b",
    "qwen3-1.7b",
    "smollm3-3b",
    "llama-3.2-3b",
    "qwen3-4b",
    "olmoe-1b-7b",
    "olmo-2-7b",
    "llama-3.1-8b",
    "qwen3-8b",
]
TRAINED_CONTEXT = 2048
"""Tokens of a sequence, of the published shapes; their models read longer ones after a later phase
of their training."""


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


def published(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    theta: float,
    *,
    lr: float,
    tied: bool = True,
    rope: Rope = Rope(),  # noqa: B008  (frozen)
    **switches: Any,
) -> Preset:
    """Return a Llama-style model of a published shape, with the vocabulary that it was published
    with; a swarm has its tokenizer's in its place.

    Args:
        layers, width, heads, kv_heads, ffn: as in ``llama``.
        vocab: number of tokens.
        theta: base of the rotary angles.
        lr: highest learning rate.
        tied: whether the output projection is the embedding.
        rope: scaling of the rotary angles.
        switches: those of ``ModelSpec``.
    """
    numbers = (layers, width, heads, kv_heads, ffn, TRAINED_CONTEXT, vocab, theta)
    model = ModelSpec("llama", *numbers, rope=rope, **switches)
    return Preset(model, 1, 64, 20_000, _long(lr), tied)


def _long(lr: float) -> OptimizerSpec:
    return OptimizerSpec(lr=lr, min_lr=lr / 10, warmup_steps=500, decay_steps=20_000, beta2=0.95)


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
    # A mixture of 8 experts, of which each token passes 2.
    "mixture-tiny": Preset(
        replace(llama(4, 128, 4, 2, 192, 128), experts=Experts(8, 2, balance=0.01)),
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
    "gpt2-124m": Preset(
        ModelSpec("gpt", 12, 768, 12, 12, 3072, 1024, 50_257, bias=True, gelu="new"),
        4,
        32,
        20_000,
        _long(6e-4),
        tied=True,
    ),
    "smollm2-135m": published(30, 576, 9, 3, 1536, 49_152, 1e5, lr=1e-3),
    "smollm2-360m": published(32, 960, 15, 5, 2560, 49_152, 1e5, lr=1e-3),
    "qwen2.5-0.5b": published(
        24, 896, 14, 2, 4864, 151_936, 1e6, lr=6e-4, norm_eps=1e-6, qkv_bias=True
    ),
    "qwen3-0.6b": published(
        *(28, 1024, 16, 8, 3072, 151_936, 1e6),
        lr=6e-4,
        norm_eps=1e-6,
        head_dim=128,
        qk_norm="head",
    ),
    "llama-3.2-1b": published(
        16, 2048, 32, 8, 8192, 128_256, 5e5, lr=4e-4, rope=Rope("llama3", 32.0)
    ),
    "olmo-2-1b": published(
        *(16, 2048, 16, 16, 8192, 100_352, 5e5),
        lr=4e-4,
        tied=False,
        norm_eps=1e-6,
        qk_norm="projection",
        post_norm=True,
    ),
    "smollm2-1.7b": published(24, 2048, 32, 32, 8192, 49_152, 1.3e5, lr=5e-4),
    "qwen3-1.7b": published(
        *(28, 2048, 16, 8, 6144, 151_936, 1e6), lr=4e-4, norm_eps=1e-6, qk_norm="head"
    ),
    "smollm3-3b": published(
        36, 2048, 16, 4, 11_008, 128_256, 5e6, lr=3e-4, norm_eps=1e-6, nope_every=4
    ),
    "llama-3.2-3b": published(
        28, 3072, 24, 8, 8192, 128_256, 5e5, lr=3e-4, rope=Rope("llama3", 32.0)
    ),
    "qwen3-4b": published(
        *(36, 2560, 32, 8, 9728, 151_936, 1e6),
        lr=3e-4,
        norm_eps=1e-6,
        head_dim=128,
        qk_norm="head",
    ),
    "olmoe-1b-7b": published(
        *(16, 2048, 16, 16, 1024, 50_304, 1e4),
        lr=4e-4,
        tied=False,
        qk_norm="projection",
        experts=Experts(64, 8, "all", 0.01),
    ),
    "olmo-2-7b": published(
        *(32, 4096, 32, 32, 11_008, 100_352, 5e5),
        lr=3e-4,
        tied=False,
        norm_eps=1e-6,
        qk_norm="projection",
        post_norm=True,
    ),
    "llama-3.1-8b": published(
        32, 4096, 32, 8, 14_336, 128_256, 5e5, lr=3e-4, tied=False, rope=Rope("llama3", 8.0)
    ),
    "qwen3-8b": published(
        36, 4096, 32, 8, 12_288, 151_936, 1e6, lr=3e-4, tied=False, norm_eps=1e-6, qk_norm="head"
    ),
}

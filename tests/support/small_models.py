"""A small model of every family, and of every file of models."""

from model_zoo.specs.architecture import Experts, Rope, Scales
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.model import ModelSpec

SPECS = {
    "gpt": ModelSpec("gpt", 4, 32, 4, 4, 64, context=16),
    "gpt-bias": ModelSpec("gpt", 4, 32, 4, 4, 64, context=16, bias=True),
    "llama": ModelSpec("llama", 4, 32, 4, 2, 48, context=16, rope_theta=500.0),
    "qwen3": ModelSpec(
        "qwen3",
        4,
        32,
        4,
        2,
        48,
        context=16,
        norm_eps=1e-6,
        head_dim=12,
        rope=Rope("llama3", 8.0, 1.0, 4.0, 8),
    ),
    "olmo2": ModelSpec("olmo2", 4, 32, 4, 2, 48, context=16),
    "mixtral": ModelSpec(
        "mixtral", 4, 32, 4, 2, 24, context=16, experts=Experts(4, 2, balance=0.02)
    ),
}

SPECS["gemma2"] = ModelSpec(
    *("gemma2", 4, 32, 4, 2, 48, 16),
    head_dim=12,
    window=6,
    full_every=2,
    scales=Scales(attention=0.2, attention_cap=5.0, logits_cap=3.0),
)
SPECS["gpt_neox"] = ModelSpec("gpt_neox", 4, 32, 4, 4, 64, context=16, rope=Rope(dims=4))
COVERED = {spec.facts.model for spec in SPECS.values()}
SPECS |= {
    name: ModelSpec(name, 4, 32, 4, 4, 64, context=16)
    for name, family in ARCHITECTURES.items()
    if family.model not in COVERED
}
"""So every test of this folder runs for every file of models."""

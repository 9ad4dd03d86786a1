"""Which of llama.cpp's architectures computes what a model does, and the numbers that it asks for.

llama.cpp decides by the architecture's name what is computed; a model that it would compute
otherwise is refused, in words.
"""

from __future__ import annotations

from typing import Final

from model_zoo.huggingface.config import to_config
from model_zoo.specs.model import ModelSpec

Value = bool | int | float | str | list[str] | list[int] | list[float]
Keys = dict[str, Value]
"""Metadata of a GGUF file."""

_NAMES: Final = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
}
"""Architectures by the model's type in `transformers`."""
_ROTATES_NEIGHBOURS: Final = ("llama", "smollm3")
"""Architectures that rotate the pairs (2i, 2i + 1) of a head; others, as we, (i, i + D/2)."""
_EVERY: Final = 4
"""Every so many-th layer of llama.cpp's SmolLM3 has no positions."""


class NotInGguf(ValueError):
    """llama.cpp cannot compute, or tokenize, as this model does; says why."""


def architecture(spec: ModelSpec) -> str:
    """Return the name of llama.cpp's architecture that computes what a model does.

    Raises:
        NotInGguf: there is none.
    """
    try:
        name = _NAMES[str(to_config(spec)["model_type"])]
    except ValueError as error:
        raise NotInGguf(str(error)) from error
    if problem := _difference(spec, name):
        raise NotInGguf(f"llama.cpp's {name} {problem}")
    return name


def rotates_neighbours(spec: ModelSpec) -> bool:
    """Whether the rows of queries and keys have another order there than here."""
    return architecture(spec) in _ROTATES_NEIGHBOURS


def keys(spec: ModelSpec) -> Keys:
    """Return the numbers of a model, by the keys that its architecture reads.

    Raises:
        NotInGguf: llama.cpp has no such architecture.
    """
    name = architecture(spec)
    own: Keys = {
        "context_length": longest(spec),
        "embedding_length": spec.width,
        "block_count": spec.layers,
        "feed_forward_length": spec.ffn_width,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "vocab_size": spec.vocab,
    }
    if name == "gpt2":
        own["attention.layer_norm_epsilon"] = spec.norm_eps
    else:
        own |= _rotating(spec)
    if spec.experts is not None:
        own["expert_count"] = spec.experts.count
        own["expert_used_count"] = spec.experts.active
        own["expert_feed_forward_length"] = spec.ffn_width
    return {"general.architecture": name} | {f"{name}.{key}": own[key] for key in own}


def longest(spec: ModelSpec) -> int:
    """Return the longest sequence, in tokens, on which both compute the same.

    llama.cpp's llama looks back on everything: beyond a window it would compute something else.
    """
    return spec.longest if spec.window is None else min(spec.longest, spec.window)


def _rotating(spec: ModelSpec) -> Keys:
    found: Keys = {
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "attention.key_length": spec.head_width,
        "attention.value_length": spec.head_width,
        "rope.dimension_count": spec.head_width,
        "rope.freq_base": spec.rope_theta,
    }
    if spec.rope is not None and spec.rope.kind == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": spec.rope.factor}
    return found


def _difference(spec: ModelSpec, name: str) -> str | None:
    """Say in words what an architecture does otherwise than a model, or None."""
    if spec.experts is not None:
        if name == "qwen3moe" and spec.experts.shares == "all":
            return "knows only shares of the chosen experts, and this model has shares of all"
        if name == "olmoe" and spec.experts.shares == "chosen":
            return "knows only shares of all experts, and this model has shares of the chosen ones"
    if name == "olmoe" and spec.kv_heads != spec.heads:
        return "has as many key heads as query heads, and this model has fewer"
    if name == "smollm3" and spec.nope_every != _EVERY:
        return f"leaves positions out of every {_EVERY}th layer, and this model of other ones"
    if spec.rope is not None and spec.rope.kind == "llama3" and name != "llama":
        return "does not read the scaling of rotary angles that this model has, that of Llama 3"
    return None

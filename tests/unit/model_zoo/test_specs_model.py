"""A spec is bounded and consistent, and knows its parameter count."""

import pytest
from msgspec.structs import replace

from model_zoo.specs.model import ModelSpec
from model_zoo.whole import build_whole

GPT = ModelSpec("gpt", 2, 32, 4, 4, 64, context=16)
LLAMA = ModelSpec("llama", 2, 32, 4, 2, 64, context=16)


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (GPT, {"architecture": "rnn"}, "unknown"),
        (GPT, {"layers": 0}, "layers must be"),
        (GPT, {"layers": -3}, "layers must be"),
        (GPT, {"layers": True}, "layers must be"),
        (GPT, {"width": 32.0}, "width must be"),
        (GPT, {"vocab": 1 << 40}, "vocab must be"),
        (GPT, {"context": 0}, "context must be"),
        (GPT, {"heads": 5, "kv_heads": 5}, "not a multiple of heads"),
        (GPT, {"kv_heads": 2}, "kv_heads == heads"),
        (LLAMA, {"kv_heads": 3}, "not a multiple of kv_heads"),
        (LLAMA, {"heads": 32, "kv_heads": 32}, "even head width"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (LLAMA, {"rope_theta": 0.0}, "rope_theta"),
        (LLAMA, {"bias": True}, "no biases"),
        (GPT, {"bias": False}, "left out"),
    ],
)
def test_refuses(base: ModelSpec, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(base, **change)


def test_parameter_count_is_that_of_the_model(spec: ModelSpec) -> None:
    model = build_whole(spec, seed=0)
    assert spec.parameter_count == sum(p.numel() for p in model.parameters())

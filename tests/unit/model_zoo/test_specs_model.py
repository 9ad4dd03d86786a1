"""A spec is bounded and consistent, and knows its parameter count."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from model_zoo.specs.architecture import Experts, Rope
from model_zoo.specs.model import ModelSpec

GPT = ModelSpec("gpt", 2, 32, 4, 4, 64, context=16)
LLAMA = ModelSpec("llama", 2, 32, 4, 2, 64, context=16)
MIXTRAL = replace(LLAMA, architecture="mixtral", experts=Experts(4, 2))


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (GPT, {"architecture": "rnn"}, "unknown"),
        (GPT, {"layers": 0}, "layers should be"),
        (GPT, {"layers": True}, "layers should be"),
        (GPT, {"width": 32.0}, "width should be"),
        (GPT, {"vocab": 1 << 40}, "vocab should be"),
        (GPT, {"heads": 5, "kv_heads": 5}, "not a multiple of heads"),
        (GPT, {"kv_heads": 2}, "kv_heads == heads"),
        (LLAMA, {"kv_heads": 3}, "not a multiple of kv_heads"),
        (LLAMA, {"heads": 32, "kv_heads": 32}, "even head width"),
        (LLAMA, {"rope_theta": float("nan")}, "rope_theta"),
        (LLAMA, {"bias": True}, "no biases"),
        (GPT, {"window": 8}, "gpt has no window"),
        (GPT, {"rope": Rope("linear", 2.0)}, "gpt has no rope"),
        (LLAMA, {"gelu": "tanh"}, "llama has no gelu"),
        (LLAMA, {"norm_eps": float("nan")}, "norm_eps should be float > 0"),
        (LLAMA, {"head_dim": 8}, "leave it out"),
        (LLAMA, {"head_dim": 7}, "even head width"),
        (LLAMA, {"head_dim": 1 << 30}, "head_dim should be"),
        (LLAMA, {"window": True}, "window should be"),
        (LLAMA, {"full_every": 2}, "of models with a window"),
        (LLAMA, {"window": 8, "local_theta": 1.0}, "local_theta should be float > 1"),
        (LLAMA, {"rope": Rope(dims=4)}, "rotates heads whole"),
        (LLAMA, {"architecture": "mixtral"}, "mixtral is a mixture of experts"),
        (MIXTRAL, {"experts": Experts(4, 2, "all")}, "only shares of the chosen"),
        (MIXTRAL, {"window": 4}, "mixtral has no window"),
        (GPT, {"experts": Experts(4, 2)}, "gpt has no experts"),
        (LLAMA, {"layers": 1024, "experts": Experts(64, 2)}, "experts in all layers are above"),
    ],
)
def test_refuses(base: ModelSpec, change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(base, **change)


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (Rope, ("linear", 0.5), "factor"),
        (Rope, ("linear", 2.0, 0.5), "does not use"),
        (Rope, ("llama3", 8.0, 4.0, 1.0), "below"),
        (Rope, ("llama3", 8.0, 1.0, 4.0, 0), "original"),
        (Experts, (4, 5), "active"),
        (Experts, (4, True), "active"),
        (Experts, (513, 2), "count"),
        (Experts, (4, 2, "some"), "shares"),
        (Experts, (4, 2, "all", 1e9), "balance"),
        (Experts, (4, 2, "all", float("nan")), "balance"),
    ],
)
def test_refuses_a_part(kind: type, numbers: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(*numbers)


def test_hostile_experts_are_refused_when_decoded() -> None:
    good = msgspec.json.encode(MIXTRAL)
    assert msgspec.json.decode(good, type=ModelSpec).experts == Experts(4, 2)
    for experts in (b'{"count":4,"active":5}', b'{"count":4,"active":2,"more":1}', b"7"):
        bad = good.replace(b'{"count":4,"active":2}', experts)
        assert bad != good
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(bad, type=ModelSpec)


def test_a_published_mixture_has_its_published_size() -> None:
    """Qwen3-30B-A3B: 30.5 B, 3.3 B of them active."""
    experts = Experts(128, 8)
    shape = 48, 2048, 32, 4, 768, 40_960, 151_936
    qwen = ModelSpec("qwen3_moe", *shape, head_dim=128, experts=experts)
    assert qwen.parameter_count == 30_532_122_624
    assert qwen.active_parameter_count == pytest.approx(3.35e9, rel=0.005)
    assert qwen.layer_matrix_size < qwen.part_counts[1] / 10
    assert LLAMA.active_parameter_count == LLAMA.parameter_count


def test_equal_specs_have_equal_bytes() -> None:
    """What has its default is left out, whether it was given or not."""
    shortest = (
        b'{"architecture":"llama","context":16,"ffn_width":64,"heads":4,"kv_heads":2,"layers":2,'
        b'"width":32}'
    )
    given = replace(LLAMA, norm_eps=float("1e-5"), vocab=int("256"), rope_theta=10_000)
    for spec in (LLAMA, given, msgspec.json.decode(shortest, type=ModelSpec)):
        assert msgspec.json.encode(spec, order="sorted") == shortest

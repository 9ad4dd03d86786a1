"""Adapters beside frozen weights: what is trained, where it begins, and that `peft` agrees."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from model_zoo.export import export_hf
from model_zoo.flat import FlatParameters
from model_zoo.huggingface.adapters import export_adapters, merge_adapters
from model_zoo.models.lora import FrozenLinear, multiply
from model_zoo.models.packed import pack, packed_shape, unpack
from model_zoo.specs.architecture import Base, Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import (
    frozen_bytes,
    slices,
    stage_parameters,
    stage_tensors,
    whole_slice,
)
from model_zoo.stages import (
    Stage,
    build_stage,
    build_whole,
    initial_adapters,
    load_stage,
    load_whole,
    summed_loss,
    twin,
)

LLAMA = ModelSpec("llama", 3, 32, 4, 2, 48, context=16)
GPT = ModelSpec("gpt", 3, 32, 4, 4, 64, context=16, bias=True)
ALL = {"llama": LLAMA, "gpt": GPT}


def adapted(base: ModelSpec, *targets: str, rank: int = 4, kept: Any = "fp32") -> ModelSpec:
    chosen = targets or tuple(base.facts.linears(base))
    return replace(base, lora=Lora(rank, 2.0 * rank, chosen, kept))


def moved(stage: Stage) -> Stage:
    """The stage with adapters that change something."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return stage


@pytest.mark.parametrize("name", ALL)
def test_only_the_adapters_are_trained(name: str) -> None:
    spec = adapted(ALL[name])
    for part in (whole_slice(spec), *slices((1, 2))):
        stage = build_stage(spec, part, seed=1)
        trained = {n: tuple(p.shape) for n, p in stage.named_parameters() if p.requires_grad}
        assert list(trained.items()) == list(stage_tensors(spec, part).items())
        frozen = {n: tuple(p.shape) for n, p in stage.named_parameters() if not p.requires_grad}
        assert frozen == stage_tensors(spec.base, part)
        flat = FlatParameters(stage)
        assert flat.values.numel() == sum(map(torch.Size.numel, map(torch.Size, trained.values())))
    cut = (1, 2)
    assert stage_parameters(spec, cut, 1) == 2 * stage_parameters(spec, cut, 0)
    assert frozen_bytes(spec, slices(cut)[1]) == 4 * stage_parameters(spec.base, cut, 1)
    assert spec.parameter_count == spec.base.parameter_count
    assert frozen_bytes(spec.base, slices(cut)[1]) == 0


@pytest.mark.parametrize("name", ALL)
def test_the_model_begins_as_its_base(name: str, tokens: Tensor) -> None:
    spec = adapted(ALL[name])
    x = tokens[:, :16]
    ours, base = build_whole(spec, 1), build_whole(spec.base, 1)
    assert torch.equal(ours(x), base(x))
    drawn = {n: p for n, p in ours.named_parameters() if ".lora_A." in n}
    deviation = torch.cat([p.flatten() for p in drawn.values() if p.shape[1] == 32]).detach().std()
    assert float(deviation) == pytest.approx((3 * 32) ** -0.5, rel=0.05)


@pytest.mark.parametrize("name", ALL)
def test_an_adapter_adds_a_product(name: str, tokens: Tensor) -> None:
    spec = adapted(ALL[name])
    ours = moved(build_whole(spec, 1))
    base = build_whole(spec.base, 1).state_dict()
    merged = load_whole(spec.base, merge_adapters(spec, base, ours.state_dict()))
    torch.testing.assert_close(ours(tokens[:, :16]), merged(tokens[:, :16]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", get_args(Base))
@pytest.mark.parametrize("name", ALL)
def test_stages_make_the_whole(name: str, kept: str, tokens: Tensor) -> None:
    spec = adapted(ALL[name], kept=kept)
    x = tokens[:, :16]
    expected = moved(build_whole(spec, 1))(x)
    stages = [build_stage(spec, part, seed=1) for part in slices((1, 1, 1))]
    whole = moved(build_whole(spec, 1)).state_dict()
    for stage in stages:
        stage.load_state_dict({n: whole[n] for n in stage.state_dict()})
        x = stage(x)
    assert torch.equal(x, expected)


def test_a_frozen_matrix_passes_the_gradient_on_as_any(tokens: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((5, 8), (6, 8), (6,)))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    halved = weight.bfloat16()
    result = multiply(ours, halved, bias)
    expected = torch.nn.functional.linear(theirs, halved.float(), bias)
    assert torch.equal(result, expected)
    result.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_the_base_is_kept_in_its_type_and_shared_by_copies() -> None:
    stage = build_stage(adapted(LLAMA, kept="bf16"), whole_slice(LLAMA), 1)
    copied = twin(stage)
    for name, parameter in stage.named_parameters():
        other = copied.get_parameter(name)
        assert (other is parameter) == (not parameter.requires_grad), name
        matrix = not parameter.requires_grad and parameter.ndim == 2
        assert parameter.dtype == (torch.bfloat16 if matrix else torch.float32), name


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("columns", [32, 64, 100, 192])
def test_a_packed_matrix_is_as_near_as_its_bits_allow(kind: str, columns: int) -> None:
    weight = torch.randn((6, columns), generator=torch.Generator().manual_seed(columns))
    weight[1], weight[2, :3] = 0.0, torch.tensor([1e30, -1e-30, 0.0])
    packed = pack(weight, kind)
    assert packed.shape == packed_shape(6, columns, kind)
    assert packed.dtype == torch.uint8
    found = unpack(packed, columns, kind)
    assert torch.equal(found[1], weight[1])
    groups = torch.split(weight[[0, 3, 4, 5]], 64, dim=1)
    near = torch.split(found[[0, 3, 4, 5]], 64, dim=1)
    widest = 0.5 / 127 + 2**-8 if kind == "int8" else 0.153 + 2**-8  # half a step, and the scale's
    for these, those in zip(groups, near, strict=True):
        most = these.abs().amax(1, keepdim=True)
        assert bool(((these - those).abs() <= widest * most).all())
    assert float(found[2, 0]) == pytest.approx(1e30, rel=2**-8)
    assert torch.equal(pack(found, kind), packed)  # what is packed already stays as it is


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("nf4", 0.2)])
@pytest.mark.parametrize("name", ALL)
def test_a_packed_base_computes_nearly_the_same(
    name: str, kind: str, most: float, tokens: Tensor
) -> None:
    x = tokens[:, :16]
    exact, packed = (build_whole(adapted(ALL[name], kept=base), 1) for base in ("fp32", kind))
    expected = exact(x)
    apart = (packed(x) - expected).norm() / expected.norm()
    assert 0 < float(apart.detach()) < most
    packed(x).sum().backward()
    gradients = [p.grad for p in packed.parameters() if p.requires_grad]
    assert all(gradient is not None for gradient in gradients)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_a_packed_base_takes_the_memory_that_is_planned(kind: str) -> None:
    wide = ModelSpec("llama", 2, 256, 4, 2, 512, context=16)
    spec, part = adapted(wide, kept=kind), whole_slice(wide)
    stage = build_stage(spec, part, 1)
    frozen = [p for p in stage.parameters() if not p.requires_grad]
    held = sum(p.numel() * p.element_size() for p in frozen)
    assert held == pytest.approx(frozen_bytes(spec, part), rel=0.01)
    in_bf16 = frozen_bytes(adapted(wide, kept="bf16"), part)
    assert held < {"int8": 0.6, "nf4": 0.4}[kind] * in_bf16
    values = build_whole(wide, 1).state_dict() | initial_adapters(spec, part, 1)
    again = dict(load_stage(spec, part, values).named_parameters())
    assert all(torch.equal(again[name], own) for name, own in stage.named_parameters())


def test_layers_that_are_no_target_have_no_adapter() -> None:
    stage = build_stage(
        adapted(LLAMA, "self_attn.q_proj", "self_attn.v_proj"), whole_slice(LLAMA), 1
    )
    adapters = {n for n, m in stage.named_modules() if isinstance(m, FrozenLinear) and m.lora_A}
    assert adapters == {f"model.layers.{n}.self_attn.{q}_proj" for n in range(3) for q in "qv"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rank": 17},
            "larger than self_attn.k_proj, which is 16 x 32: take a rank of 16 or",
        ),
        ({"rank": 0}, "rank should be int >= 1"),
        ({"alpha": 0.0}, "alpha should be float > 0"),
        ({"alpha": float("nan")}, "alpha should be float > 0"),
        ({"targets": ()}, "no linear layer"),
        ({"targets": ("self_attn.q_proj", "wte")}, "layer 'wte'; it has self_attn.q_proj, self"),
        ({"targets": ("self_attn.v_proj", "self_attn.q_proj")}, "order"),
        ({"targets": ("self_attn.q_proj", "self_attn.q_proj")}, "order"),
        ({"base": "int4"}, "base is no enum value .int4"),
    ],
)
def test_what_a_model_cannot_have_is_refused(changes: dict[str, Any], words: str) -> None:
    usual = {"rank": 4, "alpha": 8.0, "targets": tuple(LLAMA.facts.linears(LLAMA))}
    with pytest.raises(ValueError, match=words):
        replace(LLAMA, lora=Lora(**(usual | changes)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
@pytest.mark.parametrize("name", ALL)
def test_peft_loads_what_is_exported_and_differentiates_it_alike(
    name: str, tokens: Tensor, tmp_path: Path
) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    spec = adapted(ALL[name])
    ours = moved(build_whole(spec, 1))
    base = export_hf(spec.base, build_whole(spec.base, 1).state_dict(), tmp_path / "base")
    out = export_adapters(spec, ours.state_dict(), tmp_path / "adapter", str(base))
    merged = merge_adapters(spec, build_whole(spec.base, 1).state_dict(), ours.state_dict())
    whole = export_hf(spec.base, merged, tmp_path / "merged")
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), out, is_trainable=True
    )
    x = tokens[:, :16]
    expected = ours(x)
    assert not torch.allclose(expected, build_whole(spec.base, 1)(x), atol=1e-2)
    logits = theirs(input_ids=x).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    for computed in (expected, logits):
        summed_loss(computed, tokens[:, 1:]).backward()
    gradients = {n: p.grad for n, p in ours.named_parameters() if p.requires_grad}
    trained = [(n, p.grad) for n, p in theirs.named_parameters() if p.requires_grad]
    assert len(trained) == len(gradients)
    for long, gradient in trained:
        short = long.removeprefix("base_model.model.").replace(".default.", ".")
        torch.testing.assert_close(gradient, gradients[short], rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        merged_logits = AutoModelForCausalLM.from_pretrained(whole)(input_ids=x).logits
    torch.testing.assert_close(merged_logits, expected, rtol=1e-4, atol=1e-4)

"""Operations of a token: the formula beside what torch counts."""

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model_zoo.optimizers.newton_schulz import roughly_orthogonal
from model_zoo.specs.architecture import Lora
from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.operations import flops_per_token, forward_flops_per_token, update_flops
from model_zoo.specs.slices import slices, whole_slice
from model_zoo.stages import build_stage, summed_loss

GPT = ModelSpec("gpt", 2, 32, 4, 4, 64, context=16, vocab=50)
LLAMA = ModelSpec("llama", 2, 32, 4, 2, 48, context=16, vocab=50, head_dim=16)
TIED = msgspec.structs.replace(GPT, tied=True)


@pytest.mark.parametrize("spec", [GPT, LLAMA, TIED], ids=["gpt", "llama", "tied"])
def test_the_operations_of_a_model_are_those_that_torch_counts(spec: ModelSpec) -> None:
    part = whole_slice(spec)
    stage, tokens = build_stage(spec, part, seed=1), torch.zeros(3, spec.context, dtype=torch.int64)
    with sdpa_kernel(SDPBackend.MATH):  # as two products of matrices, which are counted
        with FlopCounterMode(display=False) as forward:
            loss = summed_loss(stage(tokens), tokens)
        with FlopCounterMode(display=False) as backward:
            torch.autograd.backward(loss)
    ours = forward_flops_per_token(spec, part)
    masked = spec.layers * 2 * spec.context * spec.joined_width  # which we do not count
    assert forward.get_total_flops() == tokens.numel() * (ours + masked)
    assert backward.get_total_flops() == 2 * forward.get_total_flops()
    assert flops_per_token(spec, part) == 3 * ours


def test_a_window_leaves_less_to_look_at() -> None:
    plain = msgspec.structs.replace(LLAMA, architecture="mistral")
    part = whole_slice(plain)
    context, width = plain.context, plain.joined_width
    full = forward_flops_per_token(plain, part)
    for window in range(1, context):
        windowed = msgspec.structs.replace(plain, window=window)
        seen = sum(min(at + 1, window) for at in range(context))
        fewer = full - forward_flops_per_token(windowed, part)
        looked_at = context / 2 - fewer / (plain.layers * 4 * width)
        assert looked_at == pytest.approx(seen / context, abs=0.55)
        assert fewer >= 0
    whole = msgspec.structs.replace(plain, window=context)
    assert forward_flops_per_token(whole, part) == full


def test_flops_add_up_over_the_stages(spec: ModelSpec) -> None:
    parts = slices((1, 2, 1))
    assert sum(flops_per_token(spec, p) for p in parts) == flops_per_token(spec, whole_slice(spec))


def test_beside_adapters_only_the_inputs_are_differentiated() -> None:
    adapted = msgspec.structs.replace(LLAMA, lora=Lora(4, 8.0, ("self_attn.q_proj",), "fp32"))
    part = whole_slice(adapted)
    assert flops_per_token(adapted, part) == 2 * forward_flops_per_token(adapted, part)


@pytest.mark.parametrize("spec", [GPT, LLAMA], ids=["gpt", "llama"])
def test_an_optimizers_step_on_matrices_is_what_torch_counts(spec: ModelSpec) -> None:
    part = whole_slice(spec)
    with FlopCounterMode(display=False) as counted:
        for matrix in hidden_matrices(spec, part):
            roughly_orthogonal(torch.ones(matrix.rows, matrix.columns))
    assert update_flops(spec, part, "muon") == counted.get_total_flops() > 0
    assert update_flops(spec, part, "adamw") == 0

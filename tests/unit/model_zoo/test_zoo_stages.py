"""Every cut is the same model: same names and same initial bits."""

import hashlib
import subprocess
import sys

import pytest
import torch

from client.lab.reference import merge_states
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice, slices
from model_zoo.stages import Stage, build_stage, build_whole, load_stage, load_whole

CUTS = [(4,), (2, 2), (1, 3), (3, 1), (1, 2, 1), (1, 1, 1, 1)]


def build_all(spec: ModelSpec, cut: tuple[int, ...], seed: int = 7) -> list[Stage]:
    return [build_stage(spec, part, seed) for part in slices(cut)]


@pytest.mark.parametrize("cut", CUTS)
def test_initial_bits_do_not_depend_on_the_cut(spec: ModelSpec, cut: tuple[int, ...]) -> None:
    expected = build_whole(spec, seed=7).state_dict()
    merged = merge_states(stage.state_dict() for stage in build_all(spec, cut))
    assert list(merged) == list(expected)
    assert all(torch.equal(merged[name], expected[name]) for name in expected)


def test_initial_weights_follow_the_seed_and_the_scheme() -> None:
    spec = ModelSpec("gpt", 2, 64, 4, 4, 256, context=32, bias=True)
    state = build_whole(spec, seed=1).state_dict()
    other = build_whole(spec, seed=2).state_dict()
    weight = state["transformer.h.0.attn.c_attn.weight"]
    assert not torch.equal(weight, other["transformer.h.0.attn.c_attn.weight"])
    assert not torch.equal(weight, state["transformer.h.1.attn.c_attn.weight"])
    assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert weight.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert state["transformer.h.1.mlp.c_proj.weight"].std().item() == pytest.approx(0.01, rel=0.03)
    assert torch.equal(state["transformer.ln_f.weight"], torch.ones(64))
    assert torch.equal(state["transformer.h.0.mlp.c_fc.bias"], torch.zeros(256))


def test_initial_bits_are_the_same_on_every_machine() -> None:
    spec = ModelSpec("llama", 1, 16, 2, 1, 24, context=8)
    state = build_whole(spec, seed=42).state_dict()
    content = b"".join(name.encode() + t.numpy().tobytes() for name, t in state.items())
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == "ae34bfc94601e271"


def test_building_leaves_the_global_generator_alone(spec: ModelSpec) -> None:
    before = torch.get_rng_state()
    build_whole(spec, seed=3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("cut", [(), (2, 0, 2), (5, -1)])
def test_slices_refuse_a_stage_without_layers(cut: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        slices(cut)


def test_loading_copies(spec: ModelSpec) -> None:
    state = build_whole(spec, seed=0).state_dict()
    stage = load_stage(spec, slices((2, 2))[1], state)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.zero_()
    assert state["lm_head.weight"].abs().sum() > 0


def test_loading_refuses_a_state_that_does_not_fit(spec: ModelSpec) -> None:
    state = build_whole(spec, seed=0).state_dict()
    missing = {n: t for n, t in state.items() if n != "lm_head.weight"}
    with pytest.raises(ValueError, match=r"lm_head\.weight.*nothing"):
        load_whole(spec, missing)
    with pytest.raises(ValueError, match=r"lm_head\.weight.*\(3, 3\)"):
        load_whole(spec, {**state, "lm_head.weight": torch.zeros(3, 3)})


def test_refuses_more_tokens_than_the_context(spec: ModelSpec) -> None:
    with pytest.raises(ValueError, match="exceed the context of 16"):
        build_whole(spec, seed=0)(torch.zeros((1, 17), dtype=torch.int64))


def test_refuses_a_slice_beyond_the_model(spec: ModelSpec) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        build_stage(spec, StageSlice(0, 1, 0, 5, embeds=True, has_head=True), seed=0)


def test_building_a_first_stage_does_not_import_the_compiler() -> None:
    """It would take longer than all the rest of a worker's start."""
    program = (
        "import sys\n"
        "from model_zoo.specs.model import ModelSpec\n"
        "from model_zoo.stages import build_whole\n"
        "for name in ('gpt', 'llama'):\n"
        "    build_whole(ModelSpec(name, 2, 32, 2, 2, 64, context=16), 7)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

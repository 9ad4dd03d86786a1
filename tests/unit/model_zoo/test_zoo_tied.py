"""A tied model: one matrix embeds and projects, in the one stage that has both ends."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from model_zoo.export import export_hf
from model_zoo.flat import FlatParameters
from model_zoo.huggingface.imports import open_folder
from model_zoo.llama_cpp.tensors import tensors
from model_zoo.models.family import State
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices, stage_parameter_count, stage_tensors, whole_slice
from model_zoo.stages import build_stage, build_whole, load_whole, summed_loss, twin

TIED = {
    "gpt": ModelSpec("gpt", 3, 32, 4, 4, 64, context=16, bias=True, gelu="new", tied=True),
    "llama": ModelSpec("llama", 3, 32, 4, 2, 48, context=16, tied=True),
}
PROJECTION = "lm_head.weight"


@pytest.fixture(params=list(TIED.values()), ids=list(TIED))
def tied(request: pytest.FixtureRequest) -> ModelSpec:
    found: ModelSpec = request.param
    return found


def with_projection(tied: ModelSpec, state: State) -> State:
    """The weights of the same model with a projection of its own."""
    return state | {PROJECTION: state[tied.token_embedding]}


def run_back(spec: ModelSpec, state: State, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and every parameter's gradient."""
    model = load_whole(spec, state)
    logits = model(tokens[:, :-1])
    summed_loss(logits, tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
    named = model.named_parameters()
    return logits.detach(), {name: p.grad for name, p in named if p.grad is not None}


def test_the_matrix_is_counted_kept_and_trained_once(tied: ModelSpec, tokens: Tensor) -> None:
    model = twin(build_whole(tied, seed=1))
    matrix = tied.vocab * tied.width
    assert tied.untied.parameter_count == tied.parameter_count + matrix
    assert stage_parameter_count(tied, whole_slice(tied)) == tied.parameter_count
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert shapes == stage_tensors(tied, whole_slice(tied))
    assert PROJECTION not in model.state_dict()
    flat = FlatParameters(model)
    assert flat.values.numel() == tied.parameter_count
    before = model(tokens[:, :-1])
    flat.views(flat.values)[tied.token_embedding].mul_(2.0)
    assert not torch.allclose(model(tokens[:, :-1]), before)


def test_its_gradient_is_that_of_both_ends(tied: ModelSpec, tokens: Tensor) -> None:
    state = build_whole(tied, seed=1).state_dict()
    logits, gradients = run_back(tied, state, tokens)
    apart, theirs = run_back(tied.untied, with_projection(tied, state), tokens)
    assert torch.equal(logits, apart)
    both = theirs.pop(tied.token_embedding) + theirs.pop(PROJECTION)
    torch.testing.assert_close(gradients.pop(tied.token_embedding), both)
    assert gradients.keys() == theirs.keys()
    assert all(torch.equal(gradients[name], theirs[name]) for name in theirs)


def test_a_stage_without_the_embedding_cannot_project(tied: ModelSpec) -> None:
    first, last = slices((1, 2))
    build_stage(tied, first, seed=1)
    with pytest.raises(ValueError, match="which another stage has"):
        build_stage(tied, last, seed=1)


def test_it_is_exported_and_imported_as_it_is(tied: ModelSpec, tmp_path: Path) -> None:
    state = build_whole(tied, seed=1).state_dict()
    export_hf(tied, state, tmp_path)
    with open_folder(tmp_path, tied=True) as opened:
        assert opened.spec.tied
        assert not opened.was_tied
        assert all(torch.equal(opened.tensor(name), state[name]) for name in opened.names)
        assert len(opened.names) == len(state)
    with open_folder(tmp_path) as opened:
        assert opened.spec.tied is not True
        assert opened.was_tied
        assert torch.equal(opened.tensor(PROJECTION), state[tied.token_embedding])


def test_transformers_ties_it_too(tied: ModelSpec, tokens: Tensor, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    spec = tied if tied.architecture == "gpt" else replace(tied, norm_eps=1e-6)
    model = build_whole(spec, seed=1)
    export_hf(spec, model.state_dict(), tmp_path)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
    with torch.no_grad():
        x = tokens[:, :16]
        torch.testing.assert_close(theirs(x).logits, model(x), rtol=1e-5, atol=1e-6)


def test_a_folder_that_is_not_tied_stays_so(tied: ModelSpec, tmp_path: Path) -> None:
    state = with_projection(tied, build_whole(tied, seed=1).state_dict())
    export_hf(tied.untied, state, tmp_path)
    with open_folder(tmp_path, tied=True) as opened:
        assert opened.spec.tied is not True
        assert PROJECTION in opened.names


@pytest.mark.parametrize("kept", ["fp32", "bf16"])
def test_frozen_beside_adapters_it_stays_in_its_type(tied: ModelSpec, kept: Any) -> None:
    target = tied.facts.usual_targets
    spec = replace(tied, lora=Lora(2, 4.0, target, kept))
    tokens = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(1))
    state = build_whole(spec, seed=1).state_dict()
    logits, gradients = run_back(spec, state, tokens)
    assert state[tied.token_embedding].dtype == (
        torch.bfloat16 if kept == "bf16" else torch.float32
    )
    assert all(".lora_" in name for name in gradients)
    base = build_whole(tied, seed=1)
    tolerance = 1e-6 if kept == "fp32" else 2e-2
    torch.testing.assert_close(logits, base(tokens[:, :-1]), rtol=0, atol=tolerance)


def test_llama_cpp_gets_the_matrix_under_both_names(tied: ModelSpec) -> None:
    state = build_whole(tied, seed=1).state_dict()
    found = dict(tensors(tied, state))
    assert torch.equal(found["output.weight"], found["token_embd.weight"])

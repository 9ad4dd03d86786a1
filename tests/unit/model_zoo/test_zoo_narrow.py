"""Narrow boundaries: the uncut model computes what its stages do, and each knows its parameters."""

from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace

from client.lab.reference import merge_states
from model_zoo.export import export_hf
from model_zoo.flat import FlatParameters
from model_zoo.llama_cpp.architecture import NotInGguf, architecture
from model_zoo.models.boundaries import Sender
from model_zoo.specs.architecture import Lora, Scales
from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import MAX_VOCAB, Narrow
from model_zoo.specs.slices import (
    cut_problem,
    narrow_layers,
    slices,
    stage_parameter_count,
    stage_tensors,
    whole_slice,
)
from model_zoo.specs.state import size, stage_layout
from model_zoo.stages import Stage, build_stage, build_whole, load_whole

CUT = (1, 2, 1)
WIDE = ModelSpec("llama", 4, 32, 4, 2, 48, context=16)
SPEC = replace(WIDE, narrow=Narrow(8, narrow_layers(CUT)))
GPT = replace(ModelSpec("gpt", 4, 32, 4, 4, 64, context=16), narrow=SPEC.narrow)


def stages(spec: ModelSpec, seed: int) -> list[Stage]:
    return [build_stage(spec, part, seed) for part in slices(CUT)]


@pytest.mark.parametrize("spec", [SPEC, GPT])
def test_a_stage_has_the_ends_of_its_boundaries(spec: ModelSpec) -> None:
    parts = (*slices(CUT), whole_slice(spec))
    ends = []
    for part in parts:
        stage = build_stage(spec, part, seed=0)
        found = [(name, tuple(each.shape)) for name, each in stage.named_parameters()]
        assert list(stage_tensors(spec, part).items()) == found
        flat, layout = FlatParameters(stage), stage_layout(spec, part)
        assert layout == flat.layout
        assert size(layout) == flat.values.numel() == stage_parameter_count(spec, part)
        places = flat.views(torch.arange(flat.values.numel()))
        decayed = [name for name in places if int(places[name].flatten()[0]) < flat.decay_size]
        assert decayed
        assert not any("boundaries" in name for name in decayed)
        ends.append({name.rsplit(".", 2)[0] for name, _ in found if "boundaries" in name})
    one, three = "boundaries.1.", "boundaries.3."
    assert ends[0] == {one + "sender"}
    assert ends[1] == {one + "receiver", three + "sender"}
    assert ends[2] == {three + "receiver"}
    assert ends[3] == ends[0] | ends[1] | ends[2]


@pytest.mark.parametrize("spec", [SPEC, GPT])
def test_the_uncut_model_computes_what_its_stages_do(spec: ModelSpec, tokens: torch.Tensor) -> None:
    inputs = tokens[:, :-1]
    x, parts = inputs, stages(spec, seed=3)
    for stage in parts:
        x = stage(x, tokens=inputs)
    whole = load_whole(spec, merge_states(stage.state_dict() for stage in parts))
    assert torch.equal(x, whole(inputs))
    assert torch.equal(x, build_whole(spec, seed=3)(inputs))


def test_a_boundary_begins_with_the_embedding_and_the_first_numbers_of_the_rest() -> None:
    scaled = replace(SPEC, architecture="granite", scales=Scales(embedding=12.0))
    for spec, factor in ((SPEC, 1.0), (scaled, 12.0)):
        state = build_whole(spec, seed=5).state_dict()
        embedding = state[spec.token_embedding]
        for end in ("sender", "receiver"):
            table = state[f"boundaries.3.{end}.table.weight"]
            assert torch.equal(table, embedding * factor)
        down, up = (state[f"boundaries.3.{e}.projection.weight"] for e in ("sender", "receiver"))
        assert torch.equal(down @ up, torch.eye(8))


def test_a_senders_table_becomes_the_mean_of_its_tokens() -> None:
    """And its gradient is none of the loss's, whatever is sent back."""
    sender = Sender(SPEC)
    x, tokens = torch.randn(2, 5, 32, requires_grad=True), torch.zeros((2, 5), dtype=torch.int64)
    torch.nn.init.normal_(sender.table.weight)
    sender(x, tokens).sum().backward()
    expected = sender.table.weight[0] - x.detach().mean(dim=(0, 1))
    gradient = sender.table.weight.grad
    assert torch.allclose(gradient[0] / gradient[0].norm(), expected / expected.norm(), atol=1e-5)
    assert not gradient[1:].any()
    assert torch.allclose(x.grad, sender.projection.weight.sum(dim=0).expand(2, 5, 32))


def test_projections_are_matrices_and_tables_are_none() -> None:
    (middle,) = slices(CUT)[1:2]
    wide = len(hidden_matrices(WIDE, middle))
    found = hidden_matrices(SPEC, middle)
    assert len(found) == wide + 2
    assert {(8, 32), (32, 8)} <= {(each.rows, each.columns) for each in found}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"width": 1 << 20, "layers": [1]}, "int. <= 65536"),
        ({"width": 24, "layers": [1]}, "neither divides 128 nor is a multiple"),
        ({"width": 8, "layers": []}, "one stage has no boundary"),
        ({"width": 8, "layers": [2, 1]}, "not in order"),
        ({"width": 8, "layers": [1, 4]}, "between 1 and 3"),
        ({"width": 32, "layers": [1]}, "not below the width of 32"),
        ({"width": 4, "layers": [1]}, "multiple of 32"),
        ({"width": 8, "layers": [1], "more": 1}, "unknown field"),
    ],
)
def test_boundaries_that_no_model_has_are_refused(given: dict[str, Any], words: str) -> None:
    described = msgspec.to_builtins(WIDE) | {"narrow": given}
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(described, ModelSpec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab": MAX_VOCAB + 1}, r"two tables of the vocabulary each: with 16,385 tokens 4 MB"),
        ({"tied": True}, "one stage"),
        ({"lora": Lora(4, 8.0, ("self_attn.q_proj",))}, "all else is frozen"),
    ],
)
def test_models_that_cannot_have_them_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SPEC, **changes)


def test_a_cut_elsewhere_is_refused() -> None:
    assert cut_problem(SPEC, CUT) is None
    assert cut_problem(WIDE, (4,)) is None
    assert "between the stages" in str(cut_problem(SPEC, (2, 1, 1)))
    assert "between the stages" in str(cut_problem(SPEC, (4,)))
    assert "do not add up to 4 layers" in str(cut_problem(SPEC, (1, 2)))


def test_other_programs_get_no_such_model(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="cannot be folded"):
        export_hf(SPEC, build_whole(SPEC, 0).state_dict(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(NotInGguf, match=r"cannot be folded.*llama\.cpp"):
        architecture(SPEC)

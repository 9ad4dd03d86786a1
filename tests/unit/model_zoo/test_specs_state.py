"""The layout of a state without torch is that of the modules and the flat buffers, whose views and
gradients stay in place."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from model_zoo.flat import FlatParameters
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices, stage_parameter_count, stage_tensors, whole_slice
from model_zoo.specs.state import StateSpec, size, stage_layout
from model_zoo.stages import build_stage, build_whole, summed_loss


@pytest.mark.parametrize("cut", [(4,), (1, 3), (2, 1, 1)])
def test_a_stages_tensors_are_those_of_its_modules(spec: ModelSpec, cut: tuple[int, ...]) -> None:
    for part in slices(cut):
        stage = build_stage(spec, part, seed=0)
        found = [(name, tuple(each.shape)) for name, each in stage.named_parameters()]
        assert list(stage_tensors(spec, part).items()) == found
        flat = FlatParameters(stage)
        layout = stage_layout(spec, part)
        assert layout == flat.layout
        assert size(layout) == flat.values.numel() == stage_parameter_count(spec, part)


def test_layout_covers_the_buffer_with_matrices_first(spec: ModelSpec) -> None:
    flat = FlatParameters(build_whole(spec, seed=0))
    places = flat.views(torch.arange(spec.parameter_count))
    for place in places.values():
        assert (place.ndim >= 2) == (int(place.flatten()[0]) < flat.decay_size)
    covered = torch.cat([place.flatten() for place in places.values()])
    assert covered.tolist() == list(range(flat.values.numel()))


def test_values_and_model_are_the_same_memory(spec: ModelSpec, tokens: Tensor) -> None:
    model = build_whole(spec, seed=0)
    before = model(tokens[:, :-1])
    flat = FlatParameters(model)
    assert torch.equal(model(tokens[:, :-1]), before)
    flat.values.zero_()
    assert torch.count_nonzero(model(tokens[:, :-1])) == 0


def test_gradients_accumulate_in_the_flat_buffer(spec: ModelSpec, tokens: Tensor) -> None:
    plain, flattened = build_whole(spec, seed=0), build_whole(spec, seed=0)
    flat = FlatParameters(flattened)
    for _ in range(2):
        summed_loss(plain(tokens[:, :-1]), tokens[:, 1:]).backward()
        summed_loss(flattened(tokens[:, :-1]), tokens[:, 1:]).backward()
    expected = dict(plain.named_parameters())
    for name, found in flat.views(flat.gradients).items():
        assert torch.equal(found, expected[name].grad)
    flattened.zero_grad(set_to_none=True)
    flat.zero_gradients()
    summed_loss(flattened(tokens[:, :-1]), tokens[:, 1:]).backward()
    assert torch.count_nonzero(flat.gradients) > 0
    flat.zero_gradients()
    assert all(p.grad is not None and not p.grad.any() for p in flattened.parameters())


def test_state_names_every_parameter(spec: ModelSpec) -> None:
    stage = build_stage(spec, slices((2, 2))[1], seed=5)
    expected = {name: tensor.clone() for name, tensor in stage.state_dict().items()}
    flat = FlatParameters(stage)
    state = flat.views(flat.values)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_tensors_come_section_by_section(spec: ModelSpec) -> None:
    layout, state = stage_layout(spec, whole_slice(spec)), StateSpec()
    names = [name for name, _ in state.tensors(layout)]
    assert names[: len(layout)] == [name for name, _ in layout]
    assert names[-len(layout) :] == [f"second_moment/{name}" for name, _ in layout]


def test_specs_and_the_protocol_load_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\n"
        "import model_zoo.specs.state, protocol.manifest\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""The layout of a state without torch is that of the modules and the flat buffers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from model_zoo.flat import FlatParameters
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices, stage_parameter_count, stage_tensors, whole_slice
from model_zoo.specs.state import StateSpec, size, stage_layout
from model_zoo.stages import build_stage


@pytest.mark.parametrize("cut", [(4,), (1, 3), (2, 1, 1)])
def test_a_stages_tensors_are_those_of_its_modules(spec: ModelSpec, cut: tuple[int, ...]) -> None:
    for part in slices(cut):
        stage = build_stage(spec, part, seed=0)
        found = [(name, tuple(each.shape)) for name, each in stage.named_parameters()]
        assert list(stage_tensors(spec, part).items()) == found
        flat = FlatParameters(stage)
        layout = stage_layout(spec, part)
        assert layout == tuple((s.name, tuple(s.shape)) for s in flat.layout)
        assert size(layout) == flat.values.numel() == stage_parameter_count(spec, part)


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

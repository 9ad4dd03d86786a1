"""What the stages of a new swarm cost: the operations of its model, each once."""

from __future__ import annotations

import pytest

from client.cli.founding import manifest
from client.cli.founding.options import RunChoices
from client.cli.founding.presets import PRESETS
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import whole_slice


@pytest.mark.parametrize(("preset", "stages"), [("tiny", 2), ("llama-3.1-8b", 32)])
def test_stages_cost_the_operations_of_their_model(preset: str, stages: int) -> None:
    """Nothing is run: a layer and the head of 8B parameters would take minutes."""
    spec = PRESETS[preset].model
    draft = manifest.drafted(RunChoices(sequences=2), spec, stages)
    whole = 2 * spec.context * flops_per_token(spec, whole_slice(spec))
    assert sum(cost.flops for cost in draft.stages) == pytest.approx(whole)

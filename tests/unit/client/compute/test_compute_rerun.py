"""Graphs that keep the blocks' inputs alone: the same bits, from the memory that was predicted."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from client.compute.memory import Holding, MemoryNeed
from client.errors import UserError
from client.train.workers.opening import Fit, fit_stage, stage_need
from model_zoo.specs.precision import Precision
from model_zoo.specs.state import StateSpec
from protocol.pipeline.effects import BackwardTask, ForwardTask, LossTask
from tests.support.compute_stages import (
    MODELS,
    SEQUENCES,
    TOKENS,
    opened,
    token_tensors,
    tokens_of,
)
from tests.support.protocol_examples import manifest

CUT = [2, 2]
TWO = manifest(stages=2)
DEEP = replace(
    TWO,
    model=replace(TWO.model, layers=16),
    stages=tuple(replace(cost, layers=8) for cost in TWO.stages),
)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_both_stages_have_the_bits_of_whole_graphs(
    model: str, keep: bool, precision: Precision
) -> None:
    found = []
    for reruns in (True, False):
        options = {"model": model, "precision": precision, "reruns_blocks": reruns}
        first, last = (opened(stage, CUT, **options) for stage in range(2))
        tokens = tokens_of(3)
        _, (boundary, *_) = first.call(ForwardTask(0, 3), tokens)
        (gradient,) = last.call(LossTask(0, 3), boundary, tokens)[1]
        if not keep:
            first.replica.drop_graphs()
        first.call(BackwardTask(step=0, microbatch=3), gradient, tokens)
        found.append((first.replica.gradient_sum.clone(), last.replica.gradient_sum.clone()))
    reran, whole = found
    assert all(map(torch.equal, reran, whole))


def _saved_bytes(reruns_blocks: bool, model: str) -> int:
    """Bytes that the graph of the first stage's forward keeps, without parameters."""
    replica = opened(0, [3, 1], model=model, reruns_blocks=reruns_blocks).replica
    storages = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    inputs, _ = token_tensors(tokens_of(0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = replica.module(inputs)
    storages.pop(replica.flat.values.untyped_storage().data_ptr(), None)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def _need(model: str, *, reruns_blocks: bool) -> MemoryNeed:
    return Holding(
        model=MODELS[model],
        layers_per_stage=[3, 1],
        stage=0,
        sequences=SEQUENCES,
        tokens=TOKENS,
        graphs_kept=2,
        averaging_codec="fp32",
        state=StateSpec(),
        reruns_blocks=reruns_blocks,
    ).need


@pytest.mark.parametrize("model", ["gpt", "llama", "mixtral"])
def test_what_a_graph_keeps_is_predicted(model: str) -> None:
    whole, reran = _saved_bytes(False, model), _saved_bytes(True, model)
    predicted = _need(model, reruns_blocks=True)
    # The tokens and positions of the embedding are in both.
    assert reran <= 1.1 * predicted.graph_bytes
    assert reran < whole / 5
    assert predicted.total_bytes < _need(model, reruns_blocks=False).total_bytes


def test_blocks_are_run_again_where_no_whole_graph_fits() -> None:
    whole = stage_need(DEEP, 0, 0).total_bytes / 0.85
    least = stage_need(DEEP, 0, 0, reruns_blocks=True).total_bytes / 0.85
    assert least < whole
    assert fit_stage(DEEP, 0, int(whole) + 1).reruns_blocks is False
    tight = fit_stage(DEEP, 0, int(whole) - 1)
    assert tight.reruns_blocks is True
    assert tight.graphs >= 0
    assert tight.size_bytes <= whole
    needed = int(least * 0.85)
    assert fit_stage(DEEP, 0, int(least) + 1) == Fit(0, needed, True)
    with pytest.raises(UserError, match="of memory"):
        fit_stage(DEEP, 0, int(least) - 1)

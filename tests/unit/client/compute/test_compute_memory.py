"""The predicted memory of a stage against what torch really saves, and the choices made of it."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from client.compute.memory import Fit, MemoryNeed, graphs_that_fit
from client.compute.requests import OpenStage
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.matrices import largest_matrix
from model_zoo.specs.model import LOGITS_AT_ONCE, ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS
from model_zoo.specs.slices import stage_parameters
from model_zoo.stages import summed_loss
from tests.support.compute_stages import (
    MODELS,
    OPTIMIZER,
    SEQUENCES,
    TOKENS,
    LocalWorker,
    buffers_of,
    need_of,
    open_request,
    opened,
    token_tensors,
    tokens_of,
)

CUT = [1, 3]


def need(model: ModelSpec, stage: int, **changes):
    return need_of(open_request(stage, CUT, model=model, **{"graphs_kept": 2, **changes}))


@pytest.mark.parametrize("model", ["gpt", "llama"])
@pytest.mark.parametrize("stage", [0, 1])
def test_parameters_are_counted_exactly(model, stage) -> None:
    replica = opened(stage, CUT, model=model).replica
    assert stage_parameters(MODELS[model], CUT, stage) == replica.size


@pytest.mark.parametrize("codec", ["fp32", "s8"])
@pytest.mark.parametrize(
    ("rounds", "vectors"),
    [(None, 5), (LocalRounds(2), 6)],
)
def test_the_state_is_what_the_worker_holds(codec, rounds, vectors) -> None:
    """In local rounds: weights, the version's and their moments, sum, scratch."""
    worker, request = LocalWorker(), open_request(1, CUT, averaging=codec, local_rounds=rounds)
    worker.call(request)
    held = sum(each.nbytes for each in buffers_of(worker.replica))
    residual = worker.executor._opened.averager._residual
    held += 0 if residual is None else residual.nbytes
    vector, lossy = 4 * worker.replica.size, codec != "fp32"
    contribution = vector // 2 if lossy else 0  # 2 bytes each, when it is made
    assert need_of(request).state_bytes == held + contribution
    assert held == (vectors + lossy) * vector


def test_beside_a_gpu_a_local_round_takes_twelve_bytes_of_each() -> None:
    model = ModelSpec("llama", 24, 2048, 16, 16, 5632, 8, 256)

    def round_of(**options: Any) -> MemoryNeed:
        how = {"model": model, "sequences": 1, "graphs_kept": 0, **options}
        rounds = {"optimizer": replace(OPTIMIZER, name="muon"), "local_rounds": LocalRounds(2)}
        return need_of(open_request(0, [24], **how, **rounds), host=True)

    found = round_of(averaging="s8")
    parameters = stage_parameters(model, [24], 0)
    assert found.offloaded_bytes == 12 * parameters
    scratch = OPTIMIZERS["muon"].matrix_scratch * largest_matrix(model)
    assert found.state_bytes - scratch <= 14 * parameters
    assert round_of(averaging="q2").state_bytes - scratch <= 13 * parameters
    robust = round_of(averaging="s8", aggregation="centred-clipping")
    assert robust.state_bytes == found.state_bytes, "the host compares contributions"
    assert robust.offloaded_bytes == 16 * parameters


@pytest.mark.parametrize("rounds", [None, LocalRounds(2)])
def test_every_buffer_is_counted_once(rounds) -> None:
    """The count equals the buffers present: none twice, and the module owns no others."""
    replica = opened(1, CUT, local_rounds=rounds).replica
    held = {buffer.data_ptr() for buffer in buffers_of(replica)}
    assert len(held) == len(buffers_of(replica))
    storages = {buffer.untyped_storage().data_ptr() for buffer in buffers_of(replica)}
    for parameter in replica.module.parameters():
        assert parameter.untyped_storage().data_ptr() in storages
        assert parameter.grad.untyped_storage().data_ptr() in storages


@pytest.mark.parametrize("offload", [False, True])
def test_what_a_robust_rule_compares_lies_where_the_vectors_lie(offload: bool) -> None:
    """The contributions: one vector, in the host's memory where that has the others."""
    vector = 4 * stage_parameters(MODELS["gpt"], CUT, 1)
    plain = need("gpt", 1, offload=offload)
    robust = need("gpt", 1, offload=offload, aggregation="centred-clipping")
    added = robust.state_bytes - plain.state_bytes
    away = robust.offloaded_bytes - plain.offloaded_bytes
    assert (added, away) == ((0, vector) if offload else (vector, 0))


@pytest.mark.parametrize("window", [100, 10**9])
def test_with_offload_the_gpu_holds_the_weights_and_a_window_of_each_vector(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("client.compute.memory.OFFLOAD_WINDOW", window)
    parameters = stage_parameters(MODELS["gpt"], CUT, 1)
    scratch = OPTIMIZERS[OPTIMIZER.name].matrix_scratch * largest_matrix(MODELS["gpt"])
    exact, coded = (need("gpt", 1, offload=True, averaging=codec) for codec in ("fp32", "s8"))
    for found, encoded in ((exact, 0), (coded, 4 * parameters // 3)):
        vectors = found.offloaded_bytes // (4 * parameters)
        windows = 4 * min(window, parameters) * vectors
        assert found.state_bytes - scratch == 4 * parameters + encoded + windows


def saved_bytes(request: OpenStage) -> int:
    """Bytes of the distinct tensors that a forward keeps for its backward, without parameters."""
    worker, kept = LocalWorker(), {}
    worker.call(request)
    replica = worker.replica

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    inputs, _ = token_tensors(tokens_of(0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = replica.module(inputs)
    kept.pop(replica.flat.values.untyped_storage().data_ptr(), None)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "model",
    ["gpt", "gpt-2", "llama", "mixtral", "gemma2", "phi3", "starcoder2", "gpt_neox"],
)
def test_graphs_are_predicted_within_a_third(model, precision) -> None:
    request = open_request(0, [3, 1], model=model, precision=precision)
    whole = saved_bytes(request)
    predicted = need_of(request)
    assert whole <= predicted.graph_bytes <= whole * 1.33
    rerunning = replace(request, fit=Fit(4, reruns_blocks=True))
    inputs, predicted_inputs = saved_bytes(rerunning), need_of(rerunning)
    # the tokens and positions of the embedding are in both
    assert inputs <= 1.1 * predicted_inputs.graph_bytes
    assert inputs < whole / 5
    assert predicted_inputs.total_bytes < predicted.total_bytes


def test_the_head_is_predicted() -> None:
    fields = replace(MODELS["gpt"], vocab=5000)
    logits = torch.randn(SEQUENCES, TOKENS, 5000, requires_grad=True)
    targets = token_tensors(tokens_of(0))[1]
    sizes = [logits.nbytes]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.nbytes) or t, lambda t: t
    ):
        summed_loss(logits, targets).backward()
    sizes.append(logits.grad.nbytes)
    assert sum(sizes) <= need(fields, 1).head_bytes * 1.01


def test_a_tied_head_needs_as_much_as_one_of_its_own() -> None:
    """In pieces it holds the gradients of the matrix that it shares with the embedding."""
    own = replace(MODELS["gpt"], vocab=1 + LOGITS_AT_ONCE // (SEQUENCES * TOKENS))
    tied = replace(own, tied=True)
    assert need(tied, 1).head_bytes == need(own, 1).head_bytes


def test_kept_graphs_cost_memory_and_fit_by_it() -> None:
    few, many = (need(MODELS["gpt"], 0, graphs_kept=n) for n in (0, 9))
    assert many.total_bytes - few.total_bytes == 9 * few.graph_bytes
    assert graphs_that_fit(few, int(many.total_bytes / 0.85) + 1) == 9
    assert graphs_that_fit(few, int(few.total_bytes / 0.85) + 1) == 0
    assert graphs_that_fit(few, few.total_bytes // 2) == -1


def test_a_contradictory_model_is_refused() -> None:
    with pytest.raises(ValueError):
        need(replace(MODELS["gpt"], width=33), 0)

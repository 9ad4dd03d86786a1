"""Vectors in a GPU's host memory: the same bits as without."""

from pathlib import Path
from typing import Any

import pytest
import torch

from client.compute.offload import OffloadedVectors
from client.compute.requests import Load, Save
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import stage_parameters
from protocol.pipeline.effects import (
    ApplyTask,
    CompareTask,
    ContributeTask,
    KeepVersionTask,
    LossTask,
    PassTask,
)
from tests.support.compute_rounds import accumulate, bounds_of, close_round
from tests.support.compute_stages import Chain, buffers_of, need_of, open_request, opened, tokens_of

CPU = torch.device("cpu")


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stage is offloaded as on a GPU, whose copies are of their own."""
    monkeypatch.setattr("client.compute.replica.vectors_for", lambda *_: Copied())
    return {"offload": True}


class Copied(OffloadedVectors):
    """As on a GPU: what is computed with lies in other memory than the vectors."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.chunk = 1000

    def _on_device(self, there: torch.Tensor) -> torch.Tensor:
        return there.clone()


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("model", ["gpt", "lora"])
def test_steps_have_the_same_bits_and_are_saved_and_loaded(
    away: dict[str, Any], model: str, name: str, tmp_path: Path
) -> None:
    kind = {} if name == "adamw" else {"name": name}
    optimizer = OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=2, decay_steps=50, **kind)
    files = []
    for number, how in enumerate(({}, away)):
        worker, other = (opened(0, [4], model=model, optimizer=optimizer, **how) for _ in range(2))
        for step in range(3):
            accumulate([worker], step)
            worker.call(ApplyTask(step=step))
        path = tmp_path / f"version-{number}"
        saved, _ = worker.call(Save(version=3, path=str(path), durable=False))
        files.append(path.read_bytes())
        other.call(Load(path=str(path), version=3))
        assert saved.hash == other.replica.state_hash()
    assert files[0] == files[1]


@pytest.mark.parametrize("codec", ["fp32", "s8"])
@pytest.mark.parametrize("rule", ["sum", "centred-clipping"])
def test_rounds_have_the_same_bits(away: dict[str, Any], codec: Any, rule: str) -> None:
    hashes = []
    for how in ({}, away):
        workers = [opened(0, [4], averaging=codec, aggregation=rule, **how) for _ in range(3)]
        for step in range(3):
            accumulate(workers, step)
            replies = close_round(workers, step, owners=[0, 1, 2, 0])
            hashes.append([reply.hash for reply in replies])
    assert hashes[:3] == hashes[3:]
    assert all(len(set(each)) == 1 for each in hashes)


def test_inner_stages_and_what_is_taken_out_have_the_same_bits(away: dict[str, Any]) -> None:
    found = []
    for how in ({}, away):
        chain = Chain([2, 2], **how)
        passed = [chain.run(microbatch, keep_graph=False) for microbatch in range(2)][1]
        for worker, given in zip(
            chain.workers, ((*passed.gradients, tokens_of(1)), passed.inputs[1]), strict=True
        ):
            worker.call(PassTask(into="less", step=0, microbatch=1), *given)
        found.append(chain.sums)
    assert all(map(torch.equal, *found))


def test_audits_and_evaluations_go_on(away: dict[str, Any]) -> None:
    found = []
    for how in ({}, away):
        worker, audited = (opened(0, [4], **how) for _ in range(2))
        accumulate([audited], 0, per_worker=1)
        bounds = bounds_of(worker, 2)
        _, sent = audited.call(ContributeTask(step=0, attempt=0, bounds=bounds))
        worker.call(KeepVersionTask(step=0))
        worker.call(PassTask(into="audit", step=0, microbatch=0), tokens_of(0))
        compared, _ = worker.call(CompareTask(step=0, bounds=bounds), *sent)
        assert compared.apart[0] == 0
        asked = PassTask(into="loss", step=0, microbatch=-1)
        found.append(worker.call(asked, tokens_of(9))[0].loss_sum)
    assert found[0] == found[1]


def test_a_pass_that_fails_leaves_the_sum(away: dict[str, Any]) -> None:
    worker = opened(0, [4], **away)
    accumulate([worker], 0, per_worker=1)
    before = worker.replica.gradient_sum.clone()
    parameter = next(worker.replica.module.parameters())
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    failed = worker.fails(LossTask(step=0, microbatch=5), tokens_of(5))
    assert failed.kind == "poisoned"
    assert torch.equal(worker.replica.gradient_sum, before)
    handle.remove()
    worker.call(LossTask(step=0, microbatch=5), tokens_of(5))
    assert not torch.equal(worker.replica.gradient_sum, before)


@pytest.mark.parametrize("codec", ["fp32", "s8"])
def test_what_is_offloaded_is_predicted(away: dict[str, Any], codec: Any) -> None:
    worker = opened(1, [1, 3], averaging=codec, **away)
    replica, averager = worker.replica, worker.executor._opened.averager
    weights = replica.flat.values
    lying = [each for each in buffers_of(replica) if each is not weights]
    need = need_of(open_request(1, [1, 3], averaging=codec, **away))
    if averager._residual is not None:
        lying.append(averager._residual)
    assert need.offloaded_bytes == sum(each.nbytes for each in lying)


def test_a_large_stage_needs_six_bytes_a_parameter() -> None:
    model = ModelSpec("llama", 24, 2048, 16, 16, 5632, 8, 256)
    how = {"averaging": "s8", "offload": True, "sequences": 1, "graphs_kept": 0}
    need = need_of(open_request(0, [12, 12], model=model, **how))
    assert need.state_bytes / stage_parameters(model, [12, 12], 0) <= 6

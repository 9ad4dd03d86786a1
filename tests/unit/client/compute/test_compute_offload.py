"""Vectors in slower memory: the same bits as without, few pages at hand, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from msgspec.structs import replace

from client.compute import allowance, offload
from client.compute.errors import DiskError
from client.compute.memory import required_bytes
from client.compute.offload import WINDOW, OffloadedVectors
from client.compute.process import RequestFailed, WorkerDied, open_worker
from client.compute.requests import (
    Apply,
    ApplyLocal,
    Backward,
    CompareContribution,
    Contribute,
    Evaluate,
    Forward,
    ForwardBackward,
    KeepVersion,
    Load,
    Recompute,
    Save,
    Subtract,
)
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import stage_parameters
from model_zoo.specs.state import StateSpec
from tests.support.compute_rounds import accumulate, bounds_of, contribute_and_reduce
from tests.support.compute_stages import MODELS, LocalWorker, open_request, opened, tokens_of

CPU = torch.device("cpu")


def on_disk(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"offload": "disk", "offload_folder": str(folder), **changes}


@pytest.fixture(params=["disk", "copied"])
def away(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> dict[str, Any]:
    """How a stage is offloaded: to a file, and as on a GPU, whose copies are of their own."""
    if request.param == "copied":
        monkeypatch.setattr(offload, "vectors_for", lambda *_: Copied())
        monkeypatch.setattr("client.compute.replica.vectors_for", lambda *_: Copied())
    return on_disk(tmp_path)


class Copied(OffloadedVectors):
    """As on a GPU: what is computed with lies in other memory than the vectors."""

    def __init__(self) -> None:
        super().__init__(CPU, None)
        self.chunk = 1000

    def pieces(self, changed: Any, read: Any = ()) -> Any:
        yield from self._staged(changed, read)

    def _on_device(self, there: torch.Tensor) -> torch.Tensor:
        return there.clone()


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
@pytest.mark.parametrize("model", ["gpt", "lora"])
def test_steps_have_the_same_bits(
    away: dict[str, Any], model: str, name: str, delayed: bool
) -> None:
    kind = {} if name == "adamw" else {"kind": name}
    optimizer = OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=2, decay_steps=50, **kind)
    hashes = []
    for how in ({}, away):
        worker = opened(0, [4], model=model, optimizer=optimizer, delayed=delayed, **how)
        for step in range(3):
            accumulate([worker], step)
            worker.call(ApplyLocal(step=step, tokens=96))
        hashes.append(worker.replica.state_hash())
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("codec", ["fp32", "s8"])
@pytest.mark.parametrize("rule", ["sum", "trimmed-mean"])
def test_rounds_have_the_same_bits(away: dict[str, Any], codec: Any, rule: str) -> None:
    hashes = []
    for how in ({}, away):
        workers = [opened(0, [4], averaging=codec, aggregation=rule, **how) for _ in range(3)]
        for step in range(3):
            accumulate(workers, step)
            bounds = bounds_of(workers[0], 4)
            sums, norms = contribute_and_reduce(workers, step, 0, bounds, [0, 1, 2, 0])
            request = Apply(step=step, attempt=0, bounds=bounds, squared_norms=norms, tokens=288)
            hashes.append([worker.call(request, *sums)[0].hash for worker in workers])
    assert hashes[:3] == hashes[3:]
    assert all(len(set(each)) == 1 for each in hashes)


def test_inner_stages_and_what_is_taken_out_have_the_same_bits(away: dict[str, Any]) -> None:
    found = []
    for how in ({}, away):
        first, last = (opened(stage, [2, 2], **how) for stage in range(2))
        for microbatch in range(2):
            tokens = tokens_of(microbatch)
            _, (boundary, *_) = first.call(Forward(step=0, microbatch=microbatch), tokens)
            asked = ForwardBackward(step=0, microbatch=microbatch, tokens=tokens)
            (gradient,) = last.call(asked, boundary)[1]
            first.call(Backward(step=0, microbatch=microbatch), gradient, tokens)
        first.call(Subtract(step=0, microbatch=1), gradient, tokens)
        last.call(Subtract(step=0, microbatch=1, tokens=tokens), boundary)
        found.append((first.replica.gradient_sum.clone(), last.replica.gradient_sum.clone()))
    ours, theirs = found
    assert all(map(torch.equal, ours, theirs))


def test_a_version_is_saved_and_loaded(away: dict[str, Any], tmp_path: Path) -> None:
    files = []
    for number, how in enumerate(({}, away)):
        worker = opened(0, [4], **how)
        accumulate([worker], 0)
        worker.call(ApplyLocal(step=0, tokens=96))
        path = tmp_path / f"version-{number}"
        saved, _ = worker.call(Save(version=1, path=str(path), durable=False))
        files.append(path.read_bytes())
        other = opened(0, [4], **how)
        loaded, _ = other.call(Load(path=str(path), version=1))
        assert loaded.hash == saved.hash == other.replica.state_hash()
    assert files[0] == files[1]


def test_audits_and_evaluations_go_on(away: dict[str, Any]) -> None:
    found = []
    for how in ({}, away):
        worker, audited = (opened(0, [4], **how) for _ in range(2))
        accumulate([audited], 0, per_worker=1)
        bounds = bounds_of(worker, 2)
        _, sent = audited.call(Contribute(step=0, attempt=0, bounds=bounds))
        worker.call(KeepVersion(step=0))
        worker.call(Recompute(step=0, microbatch=0, tokens=tokens_of(0)))
        compared, _ = worker.call(CompareContribution(step=0, bounds=bounds), *sent)
        assert compared.deviation == 0
        asked = Evaluate(version=0, microbatch=-1, tokens=tokens_of(9))
        found.append(worker.call(asked)[0].loss_sum)
    assert found[0] == found[1]


def test_a_pass_that_fails_leaves_the_sum(away: dict[str, Any]) -> None:
    worker = opened(0, [4], **away)
    accumulate([worker], 0, per_worker=1)
    before = worker.replica.gradient_sum.clone()
    parameter = next(worker.replica.module.parameters())
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    failed = worker.fails(ForwardBackward(step=0, microbatch=5, tokens=tokens_of(5)))
    assert failed.kind == "poisoned"
    assert torch.equal(worker.replica.gradient_sum, before)
    handle.remove()
    worker.call(ForwardBackward(step=0, microbatch=5, tokens=tokens_of(5)))
    assert not torch.equal(worker.replica.gradient_sum, before)


# --- files ------------------------------------------------------------------------------------


def resident_bytes(vector: torch.Tensor) -> int:
    """Pages of a vector in this process, as the kernel counts them."""
    start, found = f"{vector.data_ptr():x}-", 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            inside = line.startswith(start)
        elif inside and head == "Rss:":
            found = int(line.split()[1]) * 1024
    return found


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="counted by Linux")


@linux_only
def test_only_a_window_is_in_this_process(tmp_path: Path) -> None:
    home = OffloadedVectors(CPU, tmp_path)
    vector = home.zeros(4 * WINDOW)
    most = 0
    for (stretch,) in home.stretches(vector):
        stretch.add_(1)
        most = max(most, resident_bytes(vector))
    assert 4 * WINDOW <= most <= 2 * 4 * WINDOW
    assert resident_bytes(vector) == 0
    assert float(vector.sum()) == 4 * WINDOW
    home.rest(vector)
    assert resident_bytes(vector) == 0


@linux_only
def test_a_step_leaves_no_pages_behind(tmp_path: Path) -> None:
    worker = opened(0, [4], averaging="s8", **on_disk(tmp_path))
    replica = worker.replica
    accumulate([worker], 0)
    assert resident_bytes(replica.gradient_sum) == 0
    assert resident_bytes(replica.flat.gradients) == 0
    bounds = bounds_of(worker, 4)
    sums, norms = contribute_and_reduce([worker], 0, 0, bounds, [0] * 4)
    request = Apply(step=0, attempt=0, bounds=bounds, squared_norms=norms, tokens=96)
    worker.call(request, *sums)
    averager = worker.executor._opened.averager
    vectors = [*replica.optimizer.vectors, averager._residual, replica.gradient_sum]
    vectors.append(replica.flat.gradients)
    # Reading a page of the next segment may take in those around it.
    assert sum(map(resident_bytes, vectors)) < sum(vector.nbytes for vector in vectors) / 2


def test_no_file_has_a_name(tmp_path: Path) -> None:
    worker = opened(0, [4], **on_disk(tmp_path))
    accumulate([worker], 0)
    assert os.listdir(tmp_path) == []


def test_a_vector_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    home = OffloadedVectors(CPU, tmp_path)
    vector = home.zeros(1000)
    kept = vector[10:20]
    del vector
    assert len(home._mapped) == 1  # a part of it holds it
    del kept
    assert len(home._mapped) == 0
    home.rest(torch.ones(1000))  # other memory stays as it is


def test_a_full_disk_is_told_when_the_stage_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    worker = LocalWorker()
    failed = worker.fails(open_request(0, [4], **on_disk(tmp_path)))
    assert failed.kind == "disk"
    assert "--offload off" in failed.message
    monkeypatch.undo()
    worker.call(open_request(0, [4], **on_disk(tmp_path)))
    accumulate([worker], 0)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="missing"):
        OffloadedVectors(CPU, tmp_path / "missing").zeros(10)


# --- prediction -------------------------------------------------------------------------------


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("codec", ["fp32", "s8"])
def test_what_is_offloaded_is_predicted(tmp_path: Path, codec: Any, delayed: bool) -> None:
    worker = opened(1, [1, 3], averaging=codec, delayed=delayed, **on_disk(tmp_path))
    replica, options = worker.replica, {"averaging_codec": codec}
    lying = sum(len(mapped) for mapped in replica.home._mapped.values())
    need = required_bytes(
        MODELS["gpt"],
        layers_per_stage=[1, 3],
        stage=1,
        sequences=3,
        tokens=16,
        graphs_kept=2,
        state=StateSpec(delayed=delayed),
        offload=True,
        **options,
    )
    assert need.offloaded_bytes == lying


def test_a_large_stage_needs_six_bytes_a_parameter() -> None:
    model = ModelSpec("llama", 24, 2048, 16, 16, 5632, 8, 256)
    need = required_bytes(
        model,
        layers_per_stage=[12, 12],
        stage=0,
        sequences=1,
        tokens=8,
        graphs_kept=0,
        averaging_codec="s8",
        state=StateSpec(),
        offload=True,
    )
    parameters = stage_parameters(model, [12, 12], 0)
    assert need.state_bytes / parameters <= 6


@pytest.mark.slow
@linux_only
async def test_a_worker_trains_within_what_was_predicted_and_leaves_nothing_when_killed(
    tmp_path: Path,
) -> None:
    model = ModelSpec("gpt", 4, 256, 4, 4, 1024, 16, 61)
    kept = replace(open_request(0, [4]), model=model, averaging_codec="s8")
    away = replace(kept, **on_disk(tmp_path))
    limit = allowance.stage_need(away).total_bytes
    assert limit < allowance.stage_need(kept).total_bytes
    free = shutil.disk_usage(tmp_path).free
    with trio.fail_after(240):
        async with open_worker() as worker:
            with pytest.raises(RequestFailed, match="oom"):
                await worker.call(replace(kept, memory_bytes=limit))
            opened, _ = await worker.call(replace(away, memory_bytes=limit))
            assert shutil.disk_usage(tmp_path).free < free
            for step in range(2):
                request = ForwardBackward(step=step, microbatch=step, tokens=tokens_of(step))
                await worker.call(request)
                await worker.call(ApplyLocal(step=step, tokens=48))
            assert opened.parameters > 3_000_000
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await worker.call(ApplyLocal(step=2, tokens=48))
    assert os.listdir(tmp_path) == []

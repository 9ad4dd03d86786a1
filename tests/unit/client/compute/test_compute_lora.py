"""A worker's stage with adapters: what is loaded, kept, saved, audited and counted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from client.compute.checkpoint import read_info
from client.compute.requests import Load, LoadStart, Save
from client.compute.starting import Written, write_start
from model_zoo.huggingface.imports import Imported
from model_zoo.models.packed import pack
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import frozen_bytes, slices, stage_parameters
from protocol.pipeline.effects import ApplyTask, KeepVersionTask, LossTask, PassTask
from tests.support.compute_stages import (
    MODELS,
    LocalWorker,
    need_of,
    open_request,
    opened,
    tokens_of,
)

WHOLE = [4]
BASE = MODELS["llama"]
ADAPTED = MODELS["lora"]


@pytest.fixture
def start(imported: Imported, tmp_path: Path) -> Written:
    return write_start(imported, slices(WHOLE)[0], lambda digest: tmp_path / digest)


def adapted(start: Written, **changes: Any) -> LocalWorker:
    worker = opened(0, WHOLE, model="lora", imported=True, **changes)
    worker.call(LoadStart(path=str(start.path), digest=start.digest))
    return worker


def train(worker: LocalWorker, step: int) -> str:
    worker.call(LossTask(step=step, microbatch=step), tokens_of(step))
    found: str = worker.call(ApplyTask(step=step))[0].hash
    return found


def test_what_is_frozen_is_loaded_as_it_is_and_stays(imported: Imported, start: Written) -> None:
    worker = adapted(start)
    for step in range(2):
        train(worker, step)
    named = dict(worker.replica.module.named_parameters())
    for name in imported.names:
        assert torch.equal(named[name].float(), imported.tensor(name).float()), name
    assert named[ADAPTED.token_embedding].dtype == torch.bfloat16


def test_a_packed_base_is_packed_as_it_is_loaded(imported: Imported, start: Written) -> None:
    spec = replace(BASE, lora=replace(ADAPTED.lora, base="nf4"))
    worker = LocalWorker()
    worker.call(open_request(0, WHOLE, model=spec, imported=True))
    worker.call(LoadStart(path=str(start.path), digest=start.digest))
    named = dict(worker.replica.module.named_parameters())
    for name in imported.names:
        found, whole = named[name], imported.tensor(name)
        if name.startswith(spec.layers_prefix) and whole.ndim == 2:
            assert torch.equal(found, pack(whole, "nf4")), name
        else:
            assert torch.equal(found.float(), whole.float()), name
    assert train(worker, 0) != train(adapted(start), 0)


def test_the_state_is_that_of_the_adapters_alone(start: Written, tmp_path: Path) -> None:
    worker = adapted(start)
    count = stage_parameters(ADAPTED, WHOLE, 0)
    assert worker.replica.size == count
    first = train(worker, 0)
    worker.call(Save(version=1, path=str(tmp_path / "saved")))
    assert (tmp_path / "saved").stat().st_size < 3 * 4 * count + 16_384
    assert all(".lora_" in name for name, _ in read_info(tmp_path / "saved").layout)
    other = adapted(start)
    other.call(Load(path=str(tmp_path / "saved"), version=1))
    assert other.replica.state_hash() == first
    assert train(other, 1) == train(worker, 1)


def test_what_is_frozen_may_come_after_the_state(start: Written) -> None:
    """It is fetched whenever a stage is opened; a version that was loaded stays."""
    worker = adapted(start)
    digest = train(worker, 0)
    worker.call(LoadStart(path=str(start.path), digest=start.digest))
    assert (worker.replica.version, worker.replica.state_hash()) == (1, digest)


def test_an_audit_computes_beside_the_same_frozen_weights(start: Written) -> None:
    worker = adapted(start)
    worker.call(KeepVersionTask(step=0))
    worker.call(PassTask(into="audit", step=0, microbatch=0), tokens_of(0))
    assert train(worker, 0) == train(adapted(start), 0)


def test_memory_is_that_of_the_frozen_weights_and_little_more() -> None:
    def total(spec: ModelSpec) -> int:
        return need_of(open_request(0, [2, 2], model=spec)).total_bytes

    wide = replace(BASE, width=512, ffn_width=1024, heads=8, kv_heads=8)
    small = replace(wide, lora=Lora(4, 8.0, ("self_attn.q_proj", "self_attn.v_proj")))
    frozen = frozen_bytes(small, slices([2, 2])[0])
    assert frozen == 2 * stage_parameters(wide, [2, 2], 0)
    assert frozen < total(small) < total(wide) / 3

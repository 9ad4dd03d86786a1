"""Stages begin with the weights of an imported model, verified, and with nothing else."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from client.compute.requests import LoadStart
from client.compute.starting import NotFinite, Written, write_start
from model_zoo.huggingface.imports import Imported, open_folder
from model_zoo.specs.slices import slices
from protocol.pipeline.effects import ApplyTask, LossTask
from tests.support.compute_stages import opened, tokens_of

CUT = [1, 2, 1]


def written(imported: Imported, folder: Path, stage: int) -> Written:
    return write_start(imported, slices(CUT)[stage], lambda digest: folder / f"{digest}.bin")


@pytest.mark.parametrize("stage", range(len(CUT)))
def test_a_stage_begins_with_its_tensors(imported: Imported, tmp_path: Path, stage: int) -> None:
    start = written(imported, tmp_path, stage)
    worker = opened(stage, CUT, model="llama")
    seeded = worker.replica.flat.values.clone()
    worker.call(LoadStart(path=str(start.path), digest=start.digest))
    replica = worker.replica
    assert replica.version == 0
    assert not torch.equal(replica.flat.values, seeded)
    for name, tensor in replica.flat.views(replica.flat.values).items():
        assert torch.equal(tensor, imported.tensor(name).float()), name
    newest, first, second, *before = replica.state_tensors
    assert not first.any()
    assert not second.any()
    assert all(torch.equal(newest, previous) for previous in before)


def test_no_weights_are_drawn_for_a_stage_that_is_imported(
    imported: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = written(imported, tmp_path, 0)
    drawn = opened(0, CUT, model="llama")
    drawn.call(LoadStart(path=str(start.path), digest=start.digest))

    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("weights were drawn")

    monkeypatch.setattr("model_zoo.stages.initial_tensor", refuse)
    worker = opened(0, CUT, model="llama", imported=True)
    assert not worker.replica.flat.values.any()
    worker.call(LoadStart(path=str(start.path), digest=start.digest))
    assert worker.replica.state_hash() == drawn.replica.state_hash()


def test_it_writes_no_more_than_the_stages_own_tensors(imported: Imported, tmp_path: Path) -> None:
    for stage in range(len(CUT)):
        start = written(imported, tmp_path, stage)
        parameters = opened(stage, CUT, model="llama").replica.size
        assert start.size_bytes == start.path.stat().st_size
        assert start.size_bytes < 2 * parameters + 4096


def test_training_that_went_on_is_given_up(imported: Imported, tmp_path: Path) -> None:
    whole = [sum(CUT)]
    start = write_start(imported, slices(whole)[0], lambda digest: tmp_path / digest)
    request = LoadStart(path=str(start.path), digest=start.digest)
    worker, fresh = opened(0, whole, model="llama"), opened(0, whole, model="llama")
    worker.call(LossTask(step=0, microbatch=0), tokens_of(0))
    worker.call(ApplyTask(step=0))
    worker.call(LossTask(step=1, microbatch=1), tokens_of(1))
    worker.call(request)
    fresh.call(request)
    assert worker.replica.state_hash() == fresh.replica.state_hash()
    assert not worker.replica.counted


def damaged(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_other_bytes_change_nothing(imported: Imported, tmp_path: Path) -> None:
    start, other = (written(imported, tmp_path, stage) for stage in (0, 1))
    worker = opened(0, CUT, model="llama")
    before = worker.replica.state_hash()

    def refused(path: Path, digest: str, words: str) -> None:
        failed = worker.fails(LoadStart(path=str(path), digest=digest))
        assert failed.kind == "checkpoint"
        assert words in failed.message
        assert worker.replica.state_hash() == before

    refused(other.path, other.digest, "of another model")
    refused(start.path, other.digest, "its digest differs")
    refused(tmp_path / "nowhere", start.digest, "No such file")
    damaged(start.path, -1)
    refused(start.path, start.digest, "its digest differs")
    start.path.write_bytes(start.path.read_bytes()[:-2])
    refused(start.path, start.digest, "where the file does")
    start.path.write_bytes(b"\xff" * 64)
    refused(start.path, start.digest, "length of its header")


def test_numbers_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    with open_folder(folder) as opened, pytest.raises(NotFinite, match=r"model\.norm\.weight"):
        written(opened, tmp_path, 2)
    assert not list(tmp_path.glob("*.tmp*"))

"""Checkpoints and texts are encrypted where the worker has a key, and read again with it only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import trio

from client import at_rest
from client.cli.models.model_source import read_parameters
from client.compute.checkpoint import examine, read_info, verify
from client.compute.errors import CheckpointError, CheckpointUnreadable, WrongData
from client.compute.process import open_worker
from client.compute.requests import Load, PrepareData, Save
from client.compute.samples import keep, kept_corpus, prepare
from client.store.checkpoints import CheckpointFolder
from client.train.transfer.inventory import stored_states
from model_zoo.data import Corpus
from tests.support.compute_stages import opened

KEY = bytes(range(32))
WORDS = b"quick brown foxes jump over the lazy dog\n" * 100


@pytest.fixture(autouse=True)
def key() -> Iterator[None]:
    at_rest.use(KEY)
    yield
    at_rest.use(None)


def text() -> Corpus:
    return Corpus("words", np.frombuffer(WORDS, dtype=np.uint8))


def test_an_encrypted_checkpoint_is_the_same_to_others_and_unreadable_on_the_disk(
    tmp_path: Path,
) -> None:
    worker, path, plain = opened(0, [4]), tmp_path / "sealed", tmp_path / "plain"
    saved, _ = worker.call(Save(version=0, path=str(path)))
    at_rest.use(None)
    same, _ = worker.call(Save(version=0, path=str(plain)))
    with pytest.raises(CheckpointUnreadable, match="key that is not at hand"):
        verify(path)
    at_rest.use(KEY)
    assert (saved.hash, saved.size_bytes) == (same.hash, same.size_bytes)
    assert saved.chunk_digests == same.chunk_digests == examine(path)[1]
    assert verify(path) == verify(plain)
    assert b"__metadata__" not in path.read_bytes()
    worker.call(Load(path=str(path), version=0, expected_hash=saved.hash))
    sealed, open_ = (read_parameters(place, verify(place)) for place in (path, plain))
    assert sealed.keys() == open_.keys()
    assert all(torch.equal(sealed[name], open_[name]) for name in sealed)


def test_a_damaged_one_is_renamed_and_a_locked_one_stays(tmp_path: Path) -> None:
    worker, folder = opened(0, [4]), CheckpointFolder(tmp_path)
    info = None
    for version in (0, 1):
        path = folder.path(0, version)
        worker.call(Save(version=0, path=str(path)))
        info = info or read_info(path)
    assert info is not None
    raw = bytearray(folder.path(0, 1).read_bytes())
    raw[200] ^= 1
    folder.path(0, 1).write_bytes(raw)
    with pytest.raises(CheckpointError, match="damaged"):
        verify(folder.path(0, 1))
    found = stored_states(folder, info.swarm, info.stages)
    assert [(one.stage, one.version) for one in found] == [(0, 0)]
    assert [entry.version for entry in folder.entries()] == [0]
    at_rest.use(bytes(32))
    assert not stored_states(folder, info.swarm, info.stages)
    assert [entry.version for entry in folder.entries()] == [0]


def test_a_text_is_kept_encrypted_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "text"
    keep(text(), path)
    assert WORDS[:20] not in path.read_bytes()
    assert kept_corpus(path).digest == text().digest
    request = PrepareData(source="", digest=text().digest, path=str(path))
    assert prepare(request).size_bytes == len(WORDS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WrongData):
        prepare(request)


def test_a_damaged_text_is_copied_again_from_its_source(tmp_path: Path) -> None:
    path, source = tmp_path / "text", tmp_path / "source"
    source.write_bytes(WORDS)
    keep(text(), path)
    path.write_bytes(path.read_bytes()[:-1])
    prepare(PrepareData(source=str(source), digest=text().digest, path=str(path)))
    assert kept_corpus(path).digest == text().digest


def test_a_worker_process_has_the_key_of_its_node(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(WORDS)

    async def prepared(path: Path) -> None:
        async with open_worker() as worker:
            request = PrepareData(source=str(source), digest=text().digest, path=str(path))
            await worker.call(request)

    trio.run(prepared, tmp_path / "sealed")
    assert kept_corpus(tmp_path / "sealed").digest == text().digest
    assert at_rest.is_encrypted(tmp_path / "sealed")
    at_rest.use(None)
    trio.run(prepared, tmp_path / "plain")
    assert (tmp_path / "plain").read_bytes() == WORDS

"""The hash of a version: its definition, and that passes go on while it is computed."""

import hashlib
import threading
from itertools import pairwise

import pytest
import torch

from client.compute import saving
from client.compute.replica import digest_of_tensors, hash_tensors
from model_zoo.specs.state_hash import LEAF_BYTES, LeafHasher
from model_zoo.specs.state_hash import root as root_of
from protocol.pipeline.effects import ApplyTask, HashTask, LossTask
from tests.support.compute_stages import LocalWorker, opened, tokens_of
from tests.support.hashes import state_hash

WAIT_S = 60.0


def cut(data: bytes, *at: int) -> list[memoryview]:
    return [memoryview(data)[a:b] for a, b in pairwise((0, *at, len(data)))]


@pytest.mark.parametrize("size", [0, 5, LEAF_BYTES, LEAF_BYTES + 4, 2 * LEAF_BYTES + 8])
def test_every_way_to_compute_it_is_the_definition(size: int) -> None:
    data = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    leaves = [data[i : i + LEAF_BYTES] for i in range(0, size, LEAF_BYTES)]
    digests = b"".join(hashlib.blake2b(leaf, digest_size=32).digest() for leaf in leaves)
    number = (7).to_bytes(8, "little")
    root = hashlib.blake2b(number + digests, digest_size=32, person=b"stage version")
    parts = cut(data, size // 12 * 4, size // 3 * 2)
    assert state_hash(7, *parts) == root.hexdigest()
    stream = LeafHasher()
    for part in parts:
        stream.update(part)
    assert root_of(7, stream.digests) == root.hexdigest()
    if size and size % 4 == 0:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.float32)
        vectors = [tensor[: len(tensor) // 3], tensor[len(tensor) // 3 :]]
        assert hash_tensors(7, vectors, 3) == root.hexdigest()


class Held:
    """Hashing that begins and does not end before it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(saving, "digest_of_tensors", self._digest)

    def _digest(self, parts: object) -> bytes:
        self.begun.set()
        assert self.go.wait(WAIT_S)
        return digest_of_tensors(parts)  # type: ignore[arg-type]


def asked(worker: LocalWorker, version: int) -> tuple[list[object], threading.Event]:
    """Ask for the hash; the answers, and when there is one."""
    answers, answered = list[object](), threading.Event()

    def take(reply: object, _: object) -> None:
        answers.append(reply)
        answered.set()

    worker.executor.execute(HashTask(step=version), (), take)
    return answers, answered


def test_passes_go_on_and_the_next_version_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = opened(0, [4])
    expected = worker.replica.state_hash()
    held = Held(monkeypatch)
    answers, answered = asked(worker, 0)
    assert held.begun.wait(WAIT_S)
    for microbatch in range(2):
        worker.call(LossTask(0, microbatch), tokens_of(microbatch))
    assert not answered.is_set()
    applied = threading.Event()

    def apply() -> None:
        worker.call(ApplyTask(step=0))
        applied.set()

    thread = threading.Thread(target=apply)
    thread.start()
    assert not applied.wait(0.2)
    assert worker.replica.version == 0
    held.go.set()
    assert answered.wait(WAIT_S)
    thread.join(WAIT_S)
    assert applied.is_set()
    (reply,) = answers
    assert reply.hash == expected  # type: ignore[attr-defined]
    assert worker.replica.state_hash() != expected


def test_another_version_is_refused() -> None:
    worker = opened(0, [4])
    assert worker.fails(HashTask(step=1)).kind == "stale"

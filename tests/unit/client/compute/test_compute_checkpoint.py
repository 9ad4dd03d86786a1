"""Versions on disk: identical between replicas, verified on the way in, never half written; and
their hashes."""

import errno
import hashlib
import json
import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from client.compute import saving
from client.compute.checkpoint import (
    CheckpointInfo,
    build_header,
    examine,
    read_info,
)
from client.compute.errors import CheckpointError, CheckpointUnreadable
from client.compute.replica import NO_VERSION, digest_of_tensors, hash_tensors
from client.compute.requests import Load, Save
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.state import StateSpec
from model_zoo.specs.state_hash import LEAF_BYTES, LeafHasher, leaf_digest, leaves
from model_zoo.specs.state_hash import root as root_of
from protocol.pipeline.effects import ApplyTask, HashTask, LossTask
from tests.support.compute_stages import LocalWorker, buffers_of, opened, tokens_of
from tests.support.hashes import state_hash


def trained(steps=2, **options):
    worker = opened(0, [4], **options)
    for step in range(steps):
        train(worker, step)
    return worker


def train(worker, step):
    worker.call(LossTask(step=step, microbatch=step), tokens_of(step))
    return worker.call(ApplyTask(step=step))[0]


def raising(error: Exception):
    def fail(*_args, **_options):
        raise error

    return fail


def test_a_loaded_replica_goes_on_as_the_saved_one(tmp_path: Path) -> None:
    path = tmp_path / "stage"
    original = trained()
    saved, _ = original.call(Save(version=2, path=str(path)))
    resumed = opened(0, [4])
    resumed.call(Load(path=str(path), version=2, expected_hash=saved.hash))
    assert resumed.replica.version == 2
    assert resumed.replica.state_hash() == original.replica.state_hash()
    for step in (2, 3):
        assert train(original, step).hash == train(resumed, step).hash


def test_the_reply_and_the_header_describe_the_file(tmp_path: Path) -> None:
    path = tmp_path / "stage"
    worker = trained()
    saved, _ = worker.call(Save(version=2, path=str(path)))
    data = path.read_bytes()
    info = examine(path)[0]
    assert saved.data_start == info.data_start
    assert saved.digests == list(map(leaf_digest, leaves([memoryview(data)[info.data_start :]])))
    assert info == read_info(path)
    assert (info.version, info.stage, info.stages, info.hash) == (2, 0, 1, saved.hash)
    assert info.state == StateSpec()
    assert info.parameters == worker.replica.size


@pytest.mark.parametrize("offload", [False, True])
def test_a_card_that_does_not_compute_is_not_asked_for_a_stream(
    tmp_path: Path, monkeypatch, offload
) -> None:
    """An idle one would wake, and Apple's have none."""
    monkeypatch.setattr(torch.cuda, "stream", raising(AttributeError("current_device")))
    worker = trained(offload=offload)
    saved, _ = worker.call(Save(version=2, path=str(tmp_path / "stage")))
    assert worker.call(HashTask(step=2))[0].hash == saved.hash


def test_the_format_stays(tmp_path: Path) -> None:
    """The file and the hash of a made-up state."""
    worker, path = opened(1, [3, 1]), tmp_path / "stage"
    ramp = torch.arange(worker.replica.size, dtype=torch.float32)
    worker.replica.replace_state(3, (ramp, ramp / 2, ramp * 4))
    saved, _ = worker.call(Save(version=3, path=str(path)))
    assert saved.hash == "0726660d8ba9c5a27049f2f3b59ca3fea259ec9361462583c0b2465f892ec210"
    digest = hashlib.blake2b(path.read_bytes(), digest_size=32).hexdigest()
    assert digest == "0083fe1d2e1ccbefbb985902c5e1d22e451a7f008993c48f9b039b3db298e322"


def test_any_safetensors_reader_finds_the_parameters(tmp_path: Path) -> None:
    path = tmp_path / "stage"
    worker = trained()
    worker.call(Save(version=2, path=str(path)))
    tensors = load_file(path)
    state = worker.replica.flat.views(worker.replica.flat.values)
    assert len(tensors) == 3 * len(state)
    assert all(torch.equal(tensors[name], value) for name, value in state.items())
    assert any(tensors[f"second_moment/{name}"].any() for name in state)


class SlowDisk:
    """Takes half of a file, and the rest when it may."""

    def __init__(self, monkeypatch) -> None:
        self.may_write, self.begun = threading.Event(), threading.Event()
        self.answers = []
        self._replacing = saving.replacing
        monkeypatch.setattr(saving, "PATIENCE_S", 0.0)
        monkeypatch.setattr(saving, "COPY_ELEMENTS", 1000)
        monkeypatch.setattr(saving, "replacing", self._slowly)

    @contextmanager
    def _slowly(self, path, **options):
        with self._replacing(path, **options) as file:
            yield SimpleNamespace(write=partial(self._write, file), seek=file.seek)

    def _write(self, file, data):
        if file.tell() > 0:  # the header is there, and with this a piece of the state
            self.begun.set()
            assert self.may_write.wait(30)
        return file.write(data)

    def begin(self, worker, version, path) -> None:
        """Have a version saved as far as it goes."""
        save = Save(version=version, path=str(path))
        worker.executor.execute(save, (), lambda reply, _: self.answers.append(reply))
        assert self.begun.wait(30)

    def end(self, worker):
        """Write the rest; the answer."""
        assert not self.answers
        self.may_write.set()
        worker.executor.close()
        (answer,) = self.answers
        return answer


def test_no_step_waits_for_a_slow_disk(tmp_path: Path, monkeypatch) -> None:
    """What is not written yet is copied before the step is applied; the file has the version."""
    worker, disk, path = trained(), SlowDisk(monkeypatch), tmp_path / "stage"
    expected = worker.replica.state_hash()
    disk.begin(worker, 2, path)
    train(worker, 2)
    assert worker.replica.version == 3
    assert worker.fails(Save(version=3, path=str(path))).kind == "disk"  # one at a time
    train(worker, 3)
    assert worker.replica.version == 4
    assert disk.end(worker).hash == examine(path)[0].hash == expected


def test_without_memory_for_a_copy_the_step_waits_and_its_passes_do_not(
    tmp_path: Path, monkeypatch
) -> None:
    worker, disk, path = trained(), SlowDisk(monkeypatch), tmp_path / "stage"
    monkeypatch.setattr(saving.Saving, "_detach", lambda _: False)
    expected = worker.replica.state_hash()
    disk.begin(worker, 2, path)
    step = threading.Thread(target=train, args=(worker, 2))
    step.start()
    while not worker.replica.counted:
        step.join(0.01)
        assert step.is_alive()
    step.join(0.1)
    assert (worker.replica.version, step.is_alive()) == (2, True)
    assert disk.end(worker).hash == examine(path)[0].hash == expected
    step.join(30)
    assert worker.replica.version == 3


def test_a_copy_that_finds_no_memory_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    worker, disk, path = trained(), SlowDisk(monkeypatch), tmp_path / "stage"
    expected = worker.replica.state_hash()
    disk.begin(worker, 2, path)
    saved = worker.executor._saving
    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", raising(MemoryError()))
        assert not saved._detach()
    assert not saved._released.is_set()
    assert saved._detach()
    assert saved._released.is_set()
    train(worker, 2)
    assert disk.end(worker).hash == examine(path)[0].hash == expected


def test_a_version_is_given_up_where_neither_disk_nor_memory_has_room(
    tmp_path: Path, monkeypatch
) -> None:
    worker, path = trained(1), tmp_path / "stage"
    worker.call(Save(version=1, path=str(path)))
    old = path.read_bytes()
    train(worker, 1)
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(saving, "LONGEST_S", 0.0)
    monkeypatch.setattr(saving, "SPARE_SHARE", 0.0)
    disk.begin(worker, 2, path)
    train(worker, 2)
    assert worker.replica.version == 3
    failed = disk.end(worker)
    assert (failed.kind, failed.message[:23]) == ("disk", "the disk is too slow: t")
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_version_is_saved_and_loaded_where_it_lies(tmp_path: Path, monkeypatch) -> None:
    """No second copy of the state is made on the processor."""
    worker = trained()
    saved, _ = worker.call(Save(version=2, path=str(tmp_path / "stage")))
    train(worker, 2)
    places = [tensor.data_ptr() for tensor in worker.replica.state_tensors]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *_: pytest.fail("a copy of the state"))
        worker.call(Load(version=2, path=str(tmp_path / "stage")))
    assert saved.hash == worker.replica.state_hash()
    assert [tensor.data_ptr() for tensor in worker.replica.state_tensors] == places


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (saving.Saving, "_read", ZeroDivisionError()),
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_copy_that_fails_lets_training_go_on(
    tmp_path: Path, monkeypatch, owner, name, error
) -> None:
    worker = trained()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising(error))
        assert worker.fails(Save(version=2, path=str(tmp_path / "stage"))).kind == "internal"
    step = threading.Thread(target=train, args=(worker, 2), daemon=True)
    step.start()
    step.join(30)
    assert not step.is_alive(), "the step waits for a copy that nobody makes"
    saved, _ = worker.call(Save(version=3, path=str(tmp_path / "stage")))
    assert examine(tmp_path / "stage")[0].hash == saved.hash == worker.replica.state_hash()


@pytest.mark.parametrize("rounds", [None, LocalRounds(1)])
def test_copies_do_not_mix_versions(tmp_path: Path, rounds) -> None:
    worker = trained(1, local_rounds=rounds)
    for version in range(1, 4):
        saved, _ = worker.call(Save(version=version, path=str(tmp_path / "stage")))
        assert examine(tmp_path / "stage") == (read_info(tmp_path / "stage"), saved.digests)
        assert saved.hash == worker.replica.state_hash()
        train(worker, version)


def test_only_the_present_version_can_be_saved(tmp_path: Path) -> None:
    worker = trained(1)
    assert worker.fails(Save(version=0, path=str(tmp_path / "stage"))).kind == "stale"


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "tempfile.mkstemp"])
def test_a_failing_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch, failing) -> None:
    path = tmp_path / "stage"
    worker = trained(1)
    worker.call(Save(version=1, path=str(path)))
    old = path.read_bytes()
    train(worker, 1)

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(failing, raising(full))
        failed = worker.fails(Save(version=2, path=str(path)))
    assert failed.kind == "disk"
    assert "No space left" in failed.message
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]
    worker.call(Save(version=2, path=str(path)))
    assert examine(path)[0].version == 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "stage"
    trained().call(Save(version=2, path=str(path)))
    return path


@pytest.mark.parametrize("other", [{"version": 3}, {"expected_hash": "00" * 32}])
def test_a_checkpoint_other_than_expected_is_refused(checkpoint: Path, other) -> None:
    worker = opened(0, [4])
    before = worker.replica.state_hash()
    expected = {"path": str(checkpoint), "version": 2}
    assert worker.fails(Load(**expected | other)).kind == "checkpoint"
    assert worker.replica.state_hash() == before


@pytest.mark.parametrize(
    ("stage", "cut", "options"),
    [(0, [4], {"swarm": "cd" * 32}), (0, [4], {"model": "llama"}), (1, [2, 2], {})],
)
def test_another_stages_checkpoint_is_refused(checkpoint: Path, stage, cut, options) -> None:
    worker = opened(stage, cut, **options)
    assert worker.fails(Load(path=str(checkpoint), version=2)).kind == "checkpoint"


def test_a_checkpoint_of_local_rounds_is_not_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "stage"
    trained(local_rounds=LocalRounds(1)).call(Save(version=2, path=str(path)))
    worker = opened(0, [4])
    worker.call(LossTask(step=0, microbatch=0), tokens_of(0))
    before = [buffer.clone() for buffer in buffers_of(worker.replica)]
    failed = worker.fails(Load(path=str(path), version=2))
    assert failed.kind == "checkpoint"
    assert "state is another" in failed.message
    assert "sgd" in failed.message
    assert (worker.replica.version, worker.replica.counted) == (0, {0})
    assert all(map(torch.equal, buffers_of(worker.replica), before))


def test_every_kind_of_damage_is_found(checkpoint: Path, tmp_path: Path) -> None:
    data = checkpoint.read_bytes()
    info = read_info(checkpoint)
    worker = opened(0, [4])
    before = worker.replica.state_hash()
    path = tmp_path / "damaged"
    for cut in (data[:-1], data + b"\0", data[: info.data_start], data[:100], data[:7], b""):
        path.write_bytes(cut)
        assert worker.fails(Load(path=str(path), version=2)).kind == "checkpoint"
    assert worker.fails(Load(path=str(tmp_path / "none"), version=2)).kind == "checkpoint"
    assert worker.fails(Load(path=str(tmp_path), version=2)).kind == "checkpoint"
    assert (worker.replica.version, worker.replica.state_hash()) == (0, before)
    section = (len(data) - info.data_start) // 3
    for place in (info.data_start, info.data_start + section, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        read_info(path)
        with pytest.raises(CheckpointError, match="damaged"):
            examine(path)[0]
        assert worker.fails(Load(path=str(path), version=2)).kind == "checkpoint"
        assert worker.replica.version == NO_VERSION
        assert worker.fails(LossTask(step=0, microbatch=0), tokens_of(0)).kind == "stale"
    worker.call(Load(path=str(checkpoint), version=2))
    assert (worker.replica.version, worker.replica.state_hash()) == (2, info.hash)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_read_now_is_not_called_damaged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    worker = opened(0, [4])
    monkeypatch.setattr(Path, "open", raising(OSError(number, os.strerror(number))))
    for read in (read_info, examine):
        with pytest.raises(CheckpointUnreadable, match="cannot read"):
            read(checkpoint)
    assert worker.fails(Load(path=str(checkpoint), version=2)).kind == "disk"


def small_file(**changes) -> bytes:
    layout = (("a", (2, 3)), ("b", (4,)))
    info = CheckpointInfo("ab", 0, 2, 5, "00" * 32, layout, StateSpec())
    header = build_header(info)
    fields = json.loads(header[8:])
    for key, value in changes.items():
        section, _, field = key.partition("__")
        if field:
            fields[section or "__metadata__"][field] = value
        else:
            fields[section] = value
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * ((56 - len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + bytes(3 * 40)


def parse(tmp_path: Path, data: bytes) -> CheckpointInfo:
    path = tmp_path / "file"
    path.write_bytes(data)
    return read_info(path)


HOSTILE_HEADERS = {
    "dtype": {"a__dtype": "F16"},
    "shape": {"a__shape": [3, 3]},
    "negative shape": {"a__shape": [-2, -3]},
    "zero shape": {"a__shape": [0]},
    "huge shape": {"a__shape": [1 << 62, 1 << 62]},
    "offsets": {"b__data_offsets": [0, 16]},
    "more tensors": {"c": {"dtype": "F32", "shape": [1], "data_offsets": [120, 124]}},
    "no tensor": {"a": None},
    "format": {"__format": "other"},
    "format of another optimizer": {"__format": "volunteer-stage-1-muon"},
    "format of an unknown one": {"__format": "volunteer-stage-1-delayed"},
    "no moment of a tensor": {"second_moment/b": None},
    "version": {"__version": "x"},
    "huge version": {"__version": "9" * 5000},
    "number as version": {"__version": 5},
    "hash that is no hex": {"__hash": "0" * 63 + "g"},
    "extra metadata": {"__extra": "x"},
}


@pytest.mark.parametrize("changes", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS.keys())
def test_hostile_headers_are_refused(tmp_path: Path, changes) -> None:
    parse(tmp_path, small_file())
    with pytest.raises(CheckpointError):
        parse(tmp_path, small_file(**changes))


def bomb(**tensors: str) -> bytes:
    """A header of MAX_HEADER_BYTES at most with these tensors in front, as JSON."""
    entries = ",".join(f'"{name}":{{{fields}}}' for name, fields in tensors.items())
    text = small_file()[8:].partition(b'"a"')[0] + entries.encode() + b"}"
    return len(text).to_bytes(8, "little") + text + bytes(1000)


def of_every_section(fields: str) -> dict[str, str]:
    return {f"{section}a": fields for section in StateSpec().sections}


def shaped(shape: str, end: str = "24") -> str:
    return f'"dtype":"F32","shape":[{shape}],"data_offsets":[0,{end}]'


BOMBS = {
    "400,000 dimensions": bomb(**of_every_section(shaped(",".join(["1099511627776"] * 400_000)))),
    "a dimension with a million digits": bomb(a=shaped("9" * 1_000_000)),
    "30,000 tensors": bomb(**{f"t{n}": shaped("1") for n in range(30_000)}),
    "100,000 fields": bomb(a=",".join(f'"{n}":0' for n in range(100_000))),
    "eight megabytes": bomb(a=shaped(",".join(["1"] * 4_000_000))),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_no_header_takes_long_to_refuse(tmp_path: Path, data) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(data)
    began = time.process_time()
    with pytest.raises(CheckpointError):
        read_info(path)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"[" * 100_000, b'{"a":' * 50_000, b'{"__metadata__":[]}', b"\xff"]
)
def test_headers_that_are_none_are_refused(tmp_path: Path, text) -> None:
    for length in (len(text), 1 << 40, len(text) + 1):
        with pytest.raises(CheckpointError):
            parse(tmp_path, length.to_bytes(8, "little") + text)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_crash(tmp_path_factory, data) -> None:
    damaged = bytearray(small_file())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged-header"
    path.write_bytes(damaged)
    try:
        info = read_info(path)
    except CheckpointError:
        return
    assert info.data_start + 12 * info.parameters == len(damaged)


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

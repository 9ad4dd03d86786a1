"""Writing checkpoints in the background, and loading them.

State of a `Saver`: at most one thread that copies and writes one version, and the buffers of the
copy, which are used again. A version's tensors change only when the step is applied, so the copy is
made beside the passes of the next step; code that changes the tensors waits for it first
(`release`). Hashing and writing happen from the copy, at the lowest priority. A file appears under
its name only when it is complete; after any failure the earlier file is unchanged.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from client import at_rest, faults
from client.compute.checkpoint import (
    CHUNK_BYTES,
    CheckpointInfo,
    build_header,
    read_info,
    read_tensors,
)
from client.compute.errors import CheckpointError, DiskError, StaleRequest
from client.compute.replica import Replica, hash_tensors, host_stretches
from client.compute.replies import Loaded, Saved
from client.compute.requests import Load, Save
from client.compute.state_hash import EarlierHasher, Hasher
from model_zoo.specs.state import Layout, StateSpec
from model_zoo.vectors import Vectors

COPY_ELEMENTS = 1 << 20
"""Copied at a time (4 MiB): between two slices the computing thread gets its turn."""
LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class _Version:
    """The version to be written: its tensors, and the fields of its header."""

    swarm: str
    stage: int
    stages: int
    version: int
    hash: str | None
    """Hex, where it is known already."""
    layout: Layout
    state: StateSpec
    tensors: tuple[Tensor, ...]
    home: Vectors
    """Where they lie."""

    def write(self, copies: Sequence[Tensor], path: Path, *, durable: bool) -> Saved:
        """Write the version.

        Args:
            copies: its tensors, (N,) each.
            path: the file.
            durable: flush it to the disk before it appears.

        Raises:
            DiskError: the file could not be completed.
        """
        digest = self.hash or _hash_of(Hasher(self.version), self.home, copies)
        header = build_header(
            swarm=self.swarm,
            stage=self.stage,
            stages=self.stages,
            version=self.version,
            digest=digest,
            layout=self.layout,
            state=self.state,
        )
        data = chain([memoryview(header)], host_stretches(self.home, copies))
        digests = write_atomically(path, data, durable=durable)
        size = len(header) + sum(copy.nbytes for copy in copies)
        return Saved(
            version=self.version,
            path=str(path),
            hash=digest,
            size_bytes=size,
            chunk_digests=digests,
        )


class Saver:
    """Saves one version at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._busy = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self._buffers: tuple[Tensor, ...] = ()

    def start(
        self, replica: Replica, request: Save, finish: Callable[[Callable[[], Saved]], None]
    ) -> None:
        """Begin to save the version in a thread.

        Args:
            replica: whose state is copied now.
            request: version and path.
            finish: called in the thread with a function that writes the file.

        Raises:
            StaleRequest: the replica is at another version.
            DiskError: the save before is still being written.
            RuntimeError: no thread can be started.
        """
        if request.version != replica.version:
            raise StaleRequest(f"asked to save {request.version}, stage is at {replica.version}")
        if self._busy.is_set():
            raise DiskError("the save before this one is still being written")
        version = _version(replica)
        copies = self._buffers_of(replica)
        stream = side_stream(replica.wire.device)

        def write() -> Saved:
            try:
                try:
                    _copy(version.tensors, copies, stream, replica.home)
                finally:
                    self._released.set()
                _yield_to_others()
                return version.write(copies, Path(request.path), durable=request.durable)
            finally:
                self._busy.clear()  # before the answer: it invites the next save

        thread = threading.Thread(target=lambda: finish(write), name="saver")
        self._busy.set()
        self._released.clear()
        try:
            thread.start()
        except BaseException:  # nothing is being written, and nobody must wait for it
            self._busy.clear()
            self._released.set()
            raise
        self._thread = thread

    def release(self) -> None:
        """Return when the tensors of the version being saved may change."""
        self._released.wait()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()

    def _buffers_of(self, replica: Replica) -> tuple[Tensor, ...]:
        """A vector (N,) in host memory for each of the state; new ones only for another stage."""
        needed = [len(tensor) for tensor in replica.state_tensors]
        if [len(buffer) for buffer in self._buffers] != needed:
            self._buffers = ()
            self._buffers = tuple(_host_vector(replica.home, size) for size in needed)
        return self._buffers


def _host_vector(home: Vectors, size: int) -> Tensor:
    """A vector (size,) in host memory, with the others if they are offloaded."""
    return home.zeros(size) if home.offloaded else torch.empty(size)


def _version(replica: Replica) -> _Version:
    part = replica.part
    tensors = tuple(tensor.detach() for tensor in replica.state_tensors)
    return _Version(
        replica.swarm,
        part.index,
        part.count,
        replica.version,
        replica.known_hash,
        _layout(replica),
        replica.state,
        tensors,
        replica.home,
    )


def side_stream(device: torch.device) -> "torch.cuda.Stream | None":
    """A GPU stream that starts after the work queued on the GPU so far."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _copy(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    stream: "torch.cuda.Stream | None",
    home: Vectors,
) -> None:
    """Copy vectors slice by slice."""
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        for source, target in zip(sources, targets, strict=True):
            for start in range(0, len(target), COPY_ELEMENTS):
                part = slice(start, start + COPY_ELEMENTS)
                if source.device.type == "cpu":  # torch would take all the threads it may have
                    np.copyto(target.numpy()[part], source.numpy()[part])
                else:
                    target[part].copy_(source[part])
                home.rest(source[part], target[part])


def _yield_to_others() -> None:
    """Give the calling thread the lowest priority; only on Linux."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _layout(replica: Replica) -> Layout:
    return tuple((segment.name, tuple(segment.shape)) for segment in replica.flat.layout)


def write_atomically(path: Path, data: Iterable[memoryview], *, durable: bool) -> list[bytes]:
    """Write buffers as one file that appears complete or not at all; return its chunk digests.

    Args:
        path: the file.
        data: its content, in order.
        durable: flush it to the disk before it appears.

    Raises:
        DiskError: it could not be completed; no partial file is left.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        digests = _write(unfinished, data, durable=durable)
        unfinished.replace(path)
        if durable:
            _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise DiskError(f"cannot write {path}: {error.strerror or error}") from error
    return digests


def _write(path: Path, data: Iterable[memoryview], *, durable: bool) -> list[bytes]:
    digests = []
    chunk, filled = hashlib.blake2b(digest_size=32), 0
    with path.open("wb") as file:
        with at_rest.writing(file) as out:
            for piece in _pieces(data):
                out.write(piece)
                while piece:
                    taken = piece[: CHUNK_BYTES - filled]
                    chunk.update(taken)
                    filled, piece = filled + len(taken), piece[len(taken) :]
                    if filled == CHUNK_BYTES:
                        digests.append(chunk.digest())
                        chunk, filled = hashlib.blake2b(digest_size=32), 0
        faults.meet_full_disk(path.name)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return [*digests, chunk.digest()] if filled else digests


def _pieces(data: Iterable[memoryview]) -> Iterable[memoryview]:
    for buffer in data:
        for start in range(0, len(buffer), CHUNK_BYTES):
            yield buffer[start : start + CHUNK_BYTES]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(replica: Replica, request: Load) -> Loaded:
    """Load the version in a file; nothing changes before all of it is verified.

    Raises:
        CheckpointError: the file is damaged or not this stage at that version.
    """
    path = Path(request.path)
    info = read_info(path)
    _check_identity(replica, request, info)
    home = replica.home
    loaded = tuple(_host_vector(home, replica.size) for _ in replica.state_tensors)
    read_tensors(path, info, host_stretches(home, loaded))
    threads = torch.get_num_threads()
    digest = hash_tensors(info.version, loaded, threads, replica.digest_of_leaf)
    if info.hash != digest and info.hash != _hash_of(EarlierHasher(info.version), home, loaded):
        raise CheckpointError(f"{path.name} is damaged: its data does not match its hash")
    replica.replace_state(info.version, loaded)
    replica.known_hash = info.hash
    return Loaded(version=info.version, hash=info.hash)


def _hash_of(hasher: Hasher | EarlierHasher, home: Vectors, tensors: Iterable[Tensor]) -> str:
    """Hash of vectors, by this thread alone."""
    for buffer in host_stretches(home, tensors):
        hasher.update(buffer)
    return hasher.hexdigest()


def _check_identity(replica: Replica, request: Load, info: CheckpointInfo) -> None:
    found = (info.swarm, info.stage, info.stages, info.version)
    wanted = (replica.swarm, replica.part.index, replica.part.count, request.version)
    if found != wanted:
        raise CheckpointError(f"checkpoint is of (swarm, stage, stages, version) {found}")
    if info.state != replica.state:
        raise CheckpointError(
            f"checkpoint is of a run {_words(info.state)}, the stage is {_words(replica.state)}"
        )
    if info.layout != _layout(replica):
        raise CheckpointError("checkpoint is of another model")
    if request.expected_hash is not None and request.expected_hash != info.hash:
        raise CheckpointError(f"checkpoint has hash {info.hash}, not {request.expected_hash}")


def _words(state: StateSpec) -> str:
    return f"with {state.optimizer}, {'with' if state.delayed else 'without'} delayed updates"

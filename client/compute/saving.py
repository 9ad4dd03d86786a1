"""Writing and hashing versions in the background, and loading checkpoints.

A version's tensors change only when the step is applied, so on the processor they are written from
where they lie, beside the passes of the next step. Code that changes them waits for it first. A
step that has waited as long as a good disk takes has what is left copied, if so much memory is
free; else it waits for some seconds more, and then the version is not saved. From a GPU all is
copied to its host at once, for its steps are short. A file appears under its name only when it is
complete; after any failure the earlier file is unchanged.

A version is hashed where it lies, by as many threads as the stage may use; code that changes it
waits until its hash is there. It is loaded into its place, too, and verified there: after a failure
the stage has no version until another one is loaded.

State of a `Saving`: what is yet to be read of its version.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil
import torch
from torch import Tensor

from client.compute.allowance import Throttle
from client.compute.checkpoint import (
    NO_HASH,
    CheckpointInfo,
    build_header,
    check_hash,
    info_of,
    reading,
)
from client.compute.errors import CheckpointError, DiskError, StaleRequest
from client.compute.lane import on_stream
from client.compute.replica import (
    NO_VERSION,
    Replica,
    digest_of_tensors,
    hash_tensors,
    host_bytes,
)
from client.compute.requests import Load, Save, Saved
from client.store.atomic import replacing
from model_zoo.specs.state import StateSpec
from model_zoo.specs.state_hash import LeafHasher, root
from protocol.pipeline.effects import HashTask, Outcome

COPY_ELEMENTS = 1 << 20
"""Copied at a time (4 MiB)."""
LOWEST_PRIORITY = 19
PATIENCE_S = 1.0
"""That a step waits for the disk at least before what is left to be written is copied."""
SLOW_BYTES_PER_S = 200e6
"""A disk that takes a version more slowly is waited for no longer."""
LONGEST_S = 15.0
"""That it waits where it cannot be copied: half of what a task is waited for at least."""
SPARE_SHARE = 0.5
"""Of the memory that is free: so much a copy may take."""


class Saving:
    """One version that is written by a thread of its own, which reads it where it lies while others
    wait to change it. ``finish`` is called in the thread with a function that writes the file.

    Raises:
        StaleRequest: the replica is at another version.
        RuntimeError: no thread can be started.
    """

    def __init__(
        self, replica: Replica, request: Save, finish: Callable[[Callable[[], Saved]], None]
    ) -> None:
        if request.version != replica.version:
            raise StaleRequest(f"asked to save {request.version}, stage is at {replica.version}")
        tensors = [tensor.detach() for tensor in replica.state_tensors]
        self._info, self._request = _info(replica), request
        self._at_once = not all(tensor.is_cpu for tensor in tensors)
        self._nbytes = sum(tensor.nbytes for tensor in tensors)
        self._parts: list[Tensor | None] = [
            part for tensor in tensors for part in torch.split(tensor, COPY_ELEMENTS)
        ]
        """None: it has been read."""
        self._lock, self._stream = threading.Lock(), side_stream(replica.wire.device)
        self._released, self.ended = threading.Event(), False
        self._thread = threading.Thread(target=lambda: finish(self._save), name="saver")
        self._thread.start()

    def release(self) -> None:
        """Return when the tensors of the version may change."""
        patience_s = min(LONGEST_S, max(PATIENCE_S, self._nbytes / SLOW_BYTES_PER_S))
        if self._released.wait(patience_s) or self._detach():
            return
        if not self._released.wait(LONGEST_S - patience_s):
            self._let_change()

    def wait(self) -> None:
        """Return when nothing is being written."""
        self._thread.join()

    def _save(self) -> Saved:
        """Write the file, with the hash in its header once all was read; raises `DiskError`."""
        info, hasher = self._info, LeafHasher()
        try:
            if self._at_once and self._detach():
                _yield_to_others()
            with written(Path(self._request.path), durable=self._request.durable) as file:
                start = file.write(build_header(info))
                for part in self._read():
                    hasher.update(part)
                    file.write(part)
                known = root(info.version, hasher.digests)
                file.seek(0)
                file.write(build_header(replace(info, hash=known)))
            return Saved(hash=known, data_start=start, digests=hasher.digests)
        finally:
            self._let_change()
            self.ended = True  # before the answer: it invites the next save

    def _read(self) -> Iterator[memoryview]:
        """Yield all bytes once, piece by piece, each valid until the next one is asked for."""
        piece = np.empty(COPY_ELEMENTS, np.float32)
        for index in range(len(self._parts)):
            with self._lock, on_stream(self._stream):
                part, self._parts[index] = self._parts[index], None
                if part is None:
                    raise DiskError("the disk is too slow: the next step could not wait for it")
                size = len(part)
                np.copyto(piece[:size], part.cpu().numpy())  # torch would take all its threads
            yield piece[:size].view(np.uint8).data
        self._released.set()

    def _detach(self) -> bool:
        """Copy what has not been read, and let the tensors change; False: there is no memory."""
        with self._lock, on_stream(self._stream):
            left = {i: part for i, part in enumerate(self._parts) if part is not None}
            needed = sum(part.nbytes for part in left.values())
            if needed > SPARE_SHARE * psutil.virtual_memory().available:
                return False
            try:
                copies = {i: _on_host(part) for i, part in left.items()}
            except MemoryError:
                return False
            for index, copy in copies.items():
                self._parts[index] = copy
        self._released.set()
        return True

    def _let_change(self) -> None:
        """Let the tensors change: what has not been read will not be."""
        with self._lock:
            self._parts = [None] * len(self._parts)
        self._released.set()


def _on_host(part: Tensor) -> Tensor:
    """Return a copy in the host's memory."""
    return torch.from_numpy(part.numpy().copy()) if part.is_cpu else part.cpu()


@contextmanager
def written(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """As `replacing`; raises `DiskError` where the file could not be completed, and none is
    left."""
    try:
        with replacing(path, durable=durable) as file:
            yield file
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror or error}") from error


def _info(replica: Replica) -> CheckpointInfo:
    """Return what the header of the version at hand says, but for its hash."""
    part = replica.part
    named = replica.wire.swarm, part.index, part.count, replica.version
    state = StateSpec(replica.optimizer.spec.name)
    return CheckpointInfo(*named, NO_HASH, replica.flat.layout, state)


def begin_hash(replica: Replica, task: HashTask, throttle: Throttle) -> Callable[[], Outcome]:
    """Return what computes the hash of a version, in a thread of its own, as far as ``throttle``
    lets it; raises `StaleRequest` where the replica is at another one."""
    if task.step != replica.version:
        raise StaleRequest(f"asked to hash {task.step}, stage is at {replica.version}")
    threads, stream = torch.get_num_threads(), side_stream(replica.wire.device)

    def digest(parts: Sequence[Tensor]) -> bytes:
        with throttle.task(), on_stream(stream):
            return digest_of_tensors(parts)

    def compute() -> Outcome:
        return Outcome(hash=hash_tensors(task.step, replica.state_tensors, threads, digest))

    return compute


def side_stream(device: torch.device) -> "torch.cuda.Stream | None":
    """A GPU stream that starts after the work queued on the GPU so far."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def _yield_to_others() -> None:
    """Give the calling thread the lowest priority; only on Linux."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def load(replica: Replica, request: Load) -> None:
    """Load the version in a file.

    Raises:
        CheckpointUnreadable: it cannot be read now.
        CheckpointError: it is not this stage at that version, and nothing has changed; or its data
            are damaged, and the stage has no version.
    """
    path = Path(request.path)
    with reading(path) as file:
        info = info_of(file)
        _check_identity(replica, request, info)
        found = [
            tensor.detach() if tensor.device.type == "cpu" else torch.empty(len(tensor))
            for tensor in replica.state_tensors
        ]
        replica.begin(NO_VERSION)
        file.seek(info.data_start)
        for tensor in found:
            file.readinto(host_bytes(tensor))  # type: ignore[attr-defined]
    check_hash(info, hash_tensors(info.version, found, torch.get_num_threads()), path)
    replica.replace_state(info.version, found)


def _check_identity(replica: Replica, request: Load, info: CheckpointInfo) -> None:
    wanted = replace(_info(replica), version=request.version)
    for name in ("swarm", "stage", "stages", "version", "state", "layout"):
        found = getattr(info, name)
        if found != getattr(wanted, name):
            raise CheckpointError(f"the checkpoint's {name} is another: {str(found)[:100]}")
    if request.expected_hash is not None and request.expected_hash != info.hash:
        raise CheckpointError(f"checkpoint has hash {info.hash}, not {request.expected_hash}")

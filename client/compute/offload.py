"""Vectors of a stage in slower, larger memory: a file, or a GPU's host.

On a CPU they lie in a file that is mapped into memory. A tensor of it is used like any other;
`rest` takes its pages out of this process, and the system keeps what it has memory for and writes
the rest to the disk. The next stretch is asked for while one is computed. On a GPU they lie in
pinned memory of the host, or in such a file, and are copied to the device and back in pieces, on a
stream of their own beside the computing.

The bits are the same as without: the same operations work on the same numbers.

An Apple GPU has no fp64, and its division and square root may round otherwise than IEEE 754. There
all vectors but the parameters lie in the memory that it shares with the processor, which makes the
updates: replicas on other machines have the same bits.

The file has no name, so nothing of it is left when the process ends, however it ends. All its bytes
are reserved before anything is computed: a full disk is an error when the stage is opened.

Shapes: as in `model_zoo.vectors`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from client.compute.errors import DiskError
from client.compute.memory import OFFLOAD_WINDOW as WINDOW
from client.compute.requests import OpenStage
from model_zoo.vectors import Stretches, Vectors

_POPULATE_WRITE = 23
"""Linux 5.14's `madvise`: take the pages in at once, not one fault at a time."""
_ZEROS = bytes(1 << 20)
_CPU = torch.device("cpu")


def vectors_for(request: OpenStage, device: torch.device) -> Vectors:
    """Return where the vectors of a stage lie."""
    updating = torch.device("cpu") if device.type == "mps" else device
    if request.offload == "off":
        return Vectors(device) if updating == device else OffloadedVectors(updating, None)
    folder = Path(request.offload_folder) if request.offload == "disk" else None
    return OffloadedVectors(updating, folder)


class OffloadedVectors(Vectors):
    """Vectors in a file, or in the host's pinned memory.

    Args:
        device: makes the updates.
        folder: where the files are; None: the host's memory, pinned if a GPU copies it.
    """

    offloaded = True

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        super().__init__(device)
        self._folder = folder
        # A mapping lives as long as its tensor. Only pages of living ones are ever given back.
        self._mapped: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
        self._stream: torch.cuda.Stream | None = None
        if device.type != "cpu":
            self.chunk = WINDOW
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def zeros(self, size: int) -> Tensor:
        """Return a new vector of zeros, (size,) fp32, on the CPU.

        Raises:
            DiskError: there is no room for it on the disk.
        """
        if self._folder is None:
            return torch.zeros(size, pin_memory=self.device.type == "cuda")
        mapped = _mapped_file(self._folder, max(1, size * 4))
        vector = torch.frombuffer(mapped, dtype=torch.float32, count=size) if size else None
        if vector is None:
            return torch.zeros(0)
        self._mapped[vector.data_ptr()] = mapped
        return vector

    def stretches(self, *vectors: Tensor) -> Stretches:
        """Yield the same stretch of every vector, where it lies."""
        starts = range(0, len(vectors[0]), WINDOW)
        for start in starts:
            parts = tuple(vector[start : start + WINDOW] for vector in vectors)
            self._expect(*(vector[start + WINDOW : start + 2 * WINDOW] for vector in vectors))
            self._take_in(*parts)
            yield parts
            self.rest(*parts)

    def pieces(self, changed: Sequence[Tensor], read: Sequence[Tensor] = ()) -> Stretches:
        """Yield the same piece of every vector on the device, one that fits the caches."""
        if all(each.device == self.device == _CPU for each in (*changed, *read)):
            for stretch in self.stretches(*changed, *read):
                yield from zip(*(torch.split(part, self.chunk) for part in stretch), strict=True)
        else:
            yield from self._staged(changed, read)

    @contextmanager
    def fetched(
        self, changed: Sequence[Tensor], read: Sequence[Tensor] = ()
    ) -> Iterator[tuple[Tensor, ...]]:
        """Have whole vectors, or parts, on the device for the length of a `with` block."""
        there = (*changed, *read)
        here = tuple(self._on_device(each) for each in there)
        if self._stream is not None:
            torch.cuda.current_stream(self.device).synchronize()
        yield here
        for home, each in zip(changed, here, strict=False):
            if home is not each:
                home.copy_(each)
        self.rest(*there)

    def rest(self, *parts: Tensor) -> None:
        """Take the pages of these parts out of this process; the system has their content."""
        for part in parts:
            self._advise(part, mmap.MADV_DONTNEED)

    # --- pages of files ----------------------------------------------------------------------

    def _expect(self, *parts: Tensor) -> None:
        """Have the system read these parts from the disk meanwhile, where it must."""
        for part in parts:
            self._advise(part, mmap.MADV_WILLNEED)

    def _take_in(self, *parts: Tensor) -> None:
        if sys.platform == "linux":
            for part in parts:
                self._advise(part, _POPULATE_WRITE)

    def _advise(self, part: Tensor, advice: int) -> None:
        """Tell the system about the pages of a part of a vector in a file; other tensors, and
        systems that do not take the advice, stay as they are."""
        if part.device.type != "cpu" or not part.numel():
            return
        start, end = part.data_ptr(), part.data_ptr() + part.nbytes
        for base, mapped in self._mapped.items():
            if base <= start and end <= base + len(mapped):
                start -= (start - base) % mmap.PAGESIZE
                _madvise(start, end - start, advice)
                return

    # --- copies to a device and back ----------------------------------------------------------

    def _staged(self, changed: Sequence[Tensor], read: Sequence[Tensor]) -> Stretches:
        """Copy piece by piece: the next one comes, and the last one goes back, while one is
        computed."""
        vectors = (*changed, *read)
        ends = [*range(0, len(vectors[0]), self.chunk), len(vectors[0])]
        parts = [tuple(vector[a:b] for vector in vectors) for a, b in pairwise(ends)]
        coming = self._fetch(parts[0]) if parts else ()
        for number, there in enumerate(parts):
            here = coming
            self._wait_for_copies(here)
            if number + 1 < len(parts):
                coming = self._fetch(parts[number + 1])
            yield here
            self._send_back(there[: len(changed)], here)
        if self._stream is not None:
            self._stream.synchronize()  # the host reads the vectors next
        self.rest(*vectors)

    def _fetch(self, there: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.cuda.stream(self._stream):
            return tuple(self._on_device(each) for each in there)

    def _on_device(self, there: Tensor) -> Tensor:
        """Return a copy on the device, or the tensor itself if it lies there."""
        return there.to(self.device, non_blocking=self._stream is not None)

    def _wait_for_copies(self, here: Sequence[Tensor]) -> None:
        if self._stream is None:
            return
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._stream)
        for each in here:  # its memory is not used again before the computing is done
            each.record_stream(computing)

    def _send_back(self, there: Sequence[Tensor], here: Sequence[Tensor]) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for home, each in zip(there, here, strict=False):
                if home is not each:
                    home.copy_(each, non_blocking=True)


def _mapped_file(folder: Path, size_bytes: int) -> mmap.mmap:
    """Return a file without a name, mapped into memory, all of it reserved on the disk.

    Raises:
        DiskError: there is no room for it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), size_bytes)
            return mmap.mmap(file.fileno(), size_bytes)
    except OSError as error:
        raise DiskError(
            f"no room in {folder} for {size_bytes >> 20} MiB that are offloaded: "
            f"{error.strerror or error}; free some, or use --offload off"
        ) from error


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Give a file all its bytes on the disk: a mapping without them would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    for start in range(0, size_bytes, len(_ZEROS)):
        os.pwrite(descriptor, _ZEROS[: size_bytes - start], start)


def _load_madvise() -> Callable[[int, int, int], int] | None:
    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is None:
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return cast(Callable[[int, int, int], int], found)


_libc_madvise = _load_madvise()


def _madvise(start: int, length: int, advice: int) -> None:
    if _libc_madvise is not None:
        _libc_madvise(start, length, advice)  # advice only: whatever it answers, the bytes stay

"""Enforces the owner's limits of memory and time in the worker.

Memory: an allocation beyond the limit fails as out of memory. On the CPU the kernel enforces it
(Linux), on a GPU torch's allocator. The node plans so that all its stages together stay within it.

Time: after each task the worker rests in proportion. With a share of 25 % a task that computes for
one second is followed by three of rest. The rest belongs to the task: it is answered afterwards, so
partners measure the speed that the volunteer really offers, and several stages on one machine,
which take turns, keep the limit together. On a busy machine the time spent waiting for the
processor counts as rest.
"""

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from client.compute.requests import OpenStage

_MIB = 1 << 20
_PER_THREAD_BYTES = 16 * _MIB
"""Stack and scratch of a thread that computes; the kernel counts a stack as it is reserved."""
_LIBRARIES_BYTES = 64 * _MIB
"""Bytes that torch's libraries allocate at their first use."""
_M_MMAP_THRESHOLD = -3
"""Of glibc's `malloc.h`: allocations of so many bytes are mapped by themselves."""
_STATUS = Path("/proc/self/status")


def enforce(request: OpenStage, device: torch.device) -> None:
    """Hold this process to the owner's limits from now on."""
    if request.fit.reruns_blocks:
        give_back_at_once()
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(request.settings.vram_share / 100, device)
    elif device.type == "mps":
        torch.mps.set_per_process_memory_fraction(request.settings.vram_share / 100)
    elif limit_bytes := request.settings.memory_limit_bytes:
        extra = _LIBRARIES_BYTES + request.threads * _PER_THREAD_BYTES
        _limit_data(limit_bytes + extra)


def _limit_data(more_bytes: int) -> None:
    """Limit this process to ``more_bytes`` beyond its present private memory; only on Linux."""
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data_bytes() + more_bytes
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_at_once() -> None:
    """Let every larger tensor be memory of its own, which the system has back when it is freed.

    The worker's allocator keeps what was freed, which is faster (see `process`). Among the kept
    inputs of blocks, what is left of their graphs would lie idle: as much as half of all.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:  # it is glibc's
        tune(_M_MMAP_THRESHOLD, _MIB)


def data_bytes() -> int:
    """Private writable memory of this process, as the kernel's limit counts it."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) * 1024
    return 0


class Throttle:
    """Rests after tasks.

    Args:
        share_percent: of the time that may be spent computing, 1 to 100.
        on_cpu: the calling thread computes itself; otherwise an accelerator does, and all the time
            that a task takes counts as computing.
    """

    def __init__(self, share_percent: int = 100, *, on_cpu: bool = True) -> None:
        self._share = share_percent / 100
        self._busy = time.thread_time if on_cpu else time.perf_counter

    @contextmanager
    def task(self) -> Iterator[None]:
        """Compute in a `with` block, which ends when it has taken as long as its share allows; at
        once if it fails."""
        begun_s, busy_s = time.perf_counter(), self._busy()
        yield
        due_s = (self._busy() - busy_s) / self._share
        rest_s = due_s - (time.perf_counter() - begun_s)
        if self._share < 1 and rest_s > 0:
            time.sleep(rest_s)

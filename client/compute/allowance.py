"""Enforces the owner's memory limit in the worker: refuses a stage that would not fit, and makes an
allocation beyond the estimate fail as out of memory.

On the CPU the kernel enforces the limit (Linux), on a GPU torch's allocator. The node plans so that
all its stages together stay within the limit; here each worker is held to its part.
"""

import sys
from pathlib import Path

import torch

from client.compute.errors import OutOfMemory
from client.compute.memory import MemoryNeed, required_bytes
from client.compute.requests import OpenStage

_MIB = 1 << 20
_PER_THREAD_BYTES = 16 * _MIB
"""Stack and scratch of a thread that computes; the kernel counts a stack as it is reserved."""
_LIBRARIES_BYTES = 64 * _MIB
"""Bytes that torch's libraries allocate at their first use."""
_STATUS = Path("/proc/self/status")


def check_fits(request: OpenStage) -> None:
    """Refuse a stage that needs more memory than the owner lends.

    Raises:
        OutOfMemory: says how much it needs.
    """
    if not request.memory_bytes:
        return
    need = stage_need(request)
    if need.total_bytes > request.memory_bytes:
        raise OutOfMemory(
            f"stage {request.stage} needs {need.total_bytes / _MIB:.0f} MiB of memory, "
            f"{request.memory_bytes / _MIB:.0f} MiB may be used"
        )


def stage_need(request: OpenStage) -> MemoryNeed:
    """Return what the stage of a request needs."""
    return required_bytes(
        request.model,
        layers_per_stage=request.layers_per_stage,
        stage=request.stage,
        sequences=request.sequences,
        tokens=request.tokens,
        graphs_kept=request.graphs_kept,
        averaging_codec=request.averaging_codec,
        state=request.state,
    )


def enforce(request: OpenStage, device: torch.device) -> None:
    """Hold this process to the owner's limits from now on."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(request.vram_share / 100, device)
    elif request.memory_bytes:
        threads = max(request.threads, request.most_threads)
        extra = _LIBRARIES_BYTES + threads * _PER_THREAD_BYTES
        _limit_data(request.memory_bytes + extra)


def _limit_data(more_bytes: int) -> None:
    """Let this process take so much more private memory than it has; only Linux knows how."""
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data_bytes() + more_bytes
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int:
    """Private writable memory of this process, as the kernel's limit counts it."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) * 1024
    return 0

"""Bytes a parameter of a stage, with and without `--offload`."""

import argparse
from typing import Any

import msgspec
import torch

from protocol.pipeline.effects import BackwardTask, ForwardTask
from tests.bench.gpu.running import Found, tell
from tests.bench.gpu.work import CALL_S, Work, payloads, timed, work, worker_step
from tests.support.compute_rounds import close_round
from tests.support.compute_stages import LocalWorker

SEGMENTS = 16


def memory(asked: argparse.Namespace) -> Found:
    """Count the allocator's bytes a parameter, and time rounds."""
    spec = msgspec.structs.replace(work("llama", small=asked.small).spec, layers=8, context=64)
    one = Work(spec, (1, 6, 1), 1, 1, 2)
    tell(asked, {"on the device": held(one, asked.device, offload=False)})
    return {"offloaded": held(one, asked.device, offload=True)}


def held(one: Work, device: str, *, offload: bool) -> Found:
    """Open a stage, and run steps with rounds, in which it averages with nobody."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    worker = LocalWorker(limit_s=CALL_S)
    worker.call(one.opening(device, offload=int(offload)))
    worker_step(worker, one, device)()
    kept, size = torch.cuda.memory_allocated() - before, worker.replica.size
    given, gradient = payloads(one, device)

    def averaged() -> None:
        named: Any = {"step": worker.replica.version, "microbatch": 2 * worker.replica.version}
        worker.call(ForwardTask(**named), given)
        worker.call(BackwardTask(**named), gradient, given)
        close_round([worker], worker.replica.version, owners=[0] * SEGMENTS)

    return {
        "parameters": size,
        "held_bytes": kept / size,
        "round_s": timed(device, averaged, 3),
        "peak_bytes": (torch.cuda.max_memory_allocated() - before) / size,
    }

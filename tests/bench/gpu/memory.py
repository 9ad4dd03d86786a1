"""Bytes a parameter of a stage, with and without `--offload`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import msgspec

from client.compute.payload import Buffer
from protocol.pipeline.effects import ApplyTask, BackwardTask, ContributeTask, ForwardTask
from tests.bench.gpu.steps import payloads, worker_step
from tests.bench.gpu.work import CALL_S, Found, Work, allocated, peak_gb, timed, work
from tests.support.compute_rounds import decode_task, reduce_task
from tests.support.compute_stages import LocalWorker


def memory(asked: argparse.Namespace) -> Found:
    """Count the allocator's bytes a parameter, and time rounds."""
    base = work("llama", small=asked.small)
    spec = msgspec.structs.replace(base.spec, layers=8, context=64)
    one = Work(spec, (1, 6, 1), 1, 1, 2)
    told: Found = {way: held(one, way, asked) for way in ("off", "on")}
    large = replace(work("gpt2", small=asked.small), microbatches=32)
    for way in ("off", "on"):
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(large.opening(asked.device, offload=way == "on"))
        step = worker_step(worker, large)
        step()
        told[f"gpt2 step {way} ms"] = 1e3 * timed(asked.device, step, 3)
        del worker, step
    told["step by step without"] = told["gpt2 step on ms"] / told["gpt2 step off ms"]
    return told


def held(one: Work, way: str, asked: argparse.Namespace) -> Found:
    """Open a stage with its vectors ``way``, and run steps with rounds."""
    before = allocated(anew=True)
    worker = LocalWorker(limit_s=CALL_S)
    worker.call(one.opening(asked.device, offload=way == "on"))
    worker_step(worker, one)()
    kept, size = allocated() - before, worker.replica.size
    bounds = [*(128 * (size // 128 * part // 16) for part in range(16)), size]
    given, gradient = payloads(worker, one)

    def averaged() -> None:
        version = worker.replica.version
        named: Any = {"step": version, "microbatch": 2 * version}
        worker.call(ForwardTask(**named), given)
        worker.call(BackwardTask(**named), gradient, given)
        apply_round(worker, version, bounds)

    seconds = timed(asked.device, averaged, 3)
    peak = 1e9 * peak_gb(asked.device) - before
    return {
        "parameters": size,
        "held_bytes": kept / size,
        "peak_bytes": peak / size,
        "round_s": seconds,
    }


def apply_round(worker: LocalWorker, number: int, bounds: list[int]) -> None:
    """Average with nobody, over the wire's codec, and make the next version."""
    worker.call(ContributeTask(step=number, attempt=0, bounds=bounds))
    sums: list[Buffer] = []
    norms: list[float] = []
    for segment in range(len(bounds) - 1):
        identity: dict[str, Any] = {"step": number, "attempt": 0, "segment": segment}
        reply, sent = worker.call(reduce_task(**identity, microbatches=[1], own=0))
        sums += sent
        norms.append(reply.sq_norm)
        worker.call(decode_task(**identity, squared_norm=norms[-1]), *sent)
    request = ApplyTask(step=number, attempt=0, bounds=bounds, sq_norms=norms)
    worker.call(request, *sums)

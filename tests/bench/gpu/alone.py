"""Steps of a worker beside one PyTorch process that does the same."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from client.cli.founding.presets import PRESETS
from model_zoo.specs.operations import flops_per_token
from model_zoo.stages import Stage, build_stage
from tests.bench.gpu.breakdown import breakdown
from tests.bench.gpu.steps import worker_step
from tests.bench.gpu.work import (
    CALL_S,
    H100_FLOPS,
    Found,
    Work,
    peak_gb,
    seeded,
    sync,
    tell,
    timed,
    work,
)
from tests.support.compute_stages import LocalWorker


def alone(asked: argparse.Namespace) -> Found:
    """Time a worker and a process in turns, first as they are and then compiled."""
    one = work(asked.model, small=asked.small)
    named = {
        "model": asked.model,
        "microbatch": f"{one.sequences} x {one.spec.context}, {one.microbatches} a step",
    }
    with tempfile.TemporaryDirectory() as folder:
        worker = LocalWorker(limit_s=CALL_S)
        worker.call(one.opening(asked.device))
        plain = compared(worker, one, "eager", asked)
        tell({"part": "alone", **named, **plain, "ms": breakdown(worker, one, asked)})
        if asked.compile == "off":
            return named
        began = time.perf_counter()
        compiling = one.opening(asked.device, compile=asked.compile, compile_folder=folder)
        reply, _ = worker.call(compiling)
        seconds = time.perf_counter() - began
        tell({"part": "alone", **named, "compile": f"{reply.compiled} after {seconds:.1f} s"})
        return {**named, **compared(worker, one, asked.reference, asked)}


def compared(worker: LocalWorker, one: Work, reference: str, asked: argparse.Namespace) -> Found:
    """Time steps of a worker, and of one PyTorch process that is compiled as named."""
    ways = {"worker": worker_step(worker, one), "process": process_step(one, reference, asked)}
    first, taken = dict[str, float](), dict[str, list[float]]()
    for way, step in ways.items():
        began = time.perf_counter()
        step()
        sync(asked.device)
        first[way], taken[way] = time.perf_counter() - began, []
    for _ in range(asked.turns):
        for way, step in ways.items():
            taken[way].append(timed(asked.device, step, 1))
    tokens = one.microbatches * one.tokens
    flop = flops_per_token(one.spec, one.part) * tokens
    middle = {way: statistics.median(seconds) for way, seconds in taken.items()}
    return {
        "parameters": worker.replica.size,
        "process is": reference,
        "first_s": first,
        "all_ms": {way: [1e3 * each for each in seconds] for way, seconds in taken.items()},
        "ratio": middle["process"] / middle["worker"],
        "tokens_s": {way: tokens / seconds for way, seconds in middle.items()},
        "mfu_of_989": {way: flop / seconds / H100_FLOPS for way, seconds in middle.items()},
        "allocated_gb": peak_gb(asked.device),
    }


def process_step(one: Work, reference: str, asked: argparse.Namespace) -> Callable[[], None]:
    """Return a step of one PyTorch process, compiled as named, in the same precision, with fused
    AdamW."""
    stage = build_stage(one.spec, one.part, 1).to(asked.device)
    low = asked.device != "cpu"
    spec = PRESETS["gpt2-124m"].optimizer
    optimizer = torch.optim.AdamW(
        stage.parameters(), lr=1e-4, betas=(spec.beta1, spec.beta2), fused=True
    )
    drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=seeded(3))
    x, out = drawn.to(asked.device), (drawn / 1000).to(asked.device)
    samples = [_tokens(one, number, asked.device) for number in range(one.microbatches)]

    def passes(stage: Stage, given: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=low):
            hidden = stage.hidden(given)
            if stage.head is None:
                return hidden
            logits = stage.project(hidden)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    run = passes
    if reference == "blocks":
        runner = torch.compile(lambda block, x: block(x, None), dynamic=False)
        stage.runner = lambda block, x, documents: runner(block, x)
    elif reference == "whole":
        run = torch.compile(passes, dynamic=False)
    total = one.microbatches * one.tokens

    def step() -> None:
        for inputs, targets in samples:
            if stage.head is not None:
                loss = run(stage, inputs, targets)
                (loss / total).backward()
                loss.item()  # as somebody who logs it, and as the worker answers
            else:
                given = x.detach().requires_grad_()
                run(stage, given, targets).backward(out)
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tokens(one: Work, number: int, device: str) -> tuple[Tensor, Tensor]:
    kind = np.dtype("<u2" if one.spec.vocab <= 1 << 16 else "<u4")
    sent = np.frombuffer(one.sample(number), kind).astype(np.int64)
    shaped = torch.from_numpy(sent.reshape(one.sequences, -1)).to(device)
    return shaped[:, :-1].contiguous(), shaped[:, 1:].contiguous()

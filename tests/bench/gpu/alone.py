"""Steps of a worker beside one PyTorch process that does the same."""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from client.cli.founding.presets import PRESETS
from model_zoo.specs.operations import flops_per_token
from model_zoo.stages import Stage, build_stage
from tests.bench.gpu.breakdown import breakdown
from tests.bench.gpu.running import Found, cores, tell
from tests.bench.gpu.work import CALL_S, Work, mfu, precision, timed, work, worker_step
from tests.support.compute_stages import LocalWorker

TURNS, TURNS_S = 5, 20.0
"""At most, and so long at most."""
Step = Callable[[], None]


def alone(asked: argparse.Namespace) -> Found:
    """Time a worker and a process in turns, as they are and compiled.

    The worker's blocks are compiled as the product does it, the process's model as a whole.
    """
    if asked.small:  # what torch makes of C++ on a processor takes minutes, and tells nothing
        torch.compile = partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    one = work(asked.model, small=asked.small)
    worker = LocalWorker(limit_s=CALL_S)
    worker.call(one.opening(asked.device))
    shape = [one.microbatches, one.sequences, one.spec.context]
    tell(asked, {"parameters": worker.replica.size, "tokens of a step": shape})
    step = worker_step(worker, one, asked.device)
    stage = build_stage(one.spec, one.part, 1).to(asked.device)
    ways = {"worker": step, "process": process_step(stage, one, asked.device, compiled=False)}
    tell(asked, {"as they are": compared(ways, one, asked)})
    del ways
    began = time.perf_counter()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(cores())
    compiling = one.opening(asked.device, compile="on", compile_folder=str(asked.cache))
    reply, _ = worker.call(compiling)
    tell(asked, {"worker": reply.words, "compiled_s": time.perf_counter() - began})
    tell(asked, {"worker compiled": compared({"worker": step}, one, asked)})
    tell(asked, {"worker's step of one microbatch": breakdown(worker, one, asked)})
    ways = {"worker": step, "process": process_step(stage, one, asked.device, compiled=True)}
    return {"compiled": compared(ways, one, asked)}


def compared(ways: Mapping[str, Step], one: Work, asked: argparse.Namespace) -> Found:
    """Time steps in turns."""
    first, taken = dict[str, float](), dict[str, list[float]]()
    for way, step in ways.items():
        first[way] = timed(asked.device, step, 1, warm=0)
        taken[way] = [timed(asked.device, step, 1, warm=0)]
    turn_s = sum(seconds.pop() for seconds in taken.values())
    most = 1 if asked.small else TURNS
    for _ in range(max(1, min(most, round(TURNS_S / turn_s)))):
        for way, step in ways.items():
            taken[way].append(timed(asked.device, step, 1, warm=0))
    tokens = one.microbatches * one.tokens
    flop = flops_per_token(one.spec, one.part) * tokens
    found: Found = {}
    for way, seconds in taken.items():
        middle = statistics.median(seconds)
        found[way] = {
            "first_s": first[way],
            "all_ms": [1e3 * each for each in seconds],
            "tokens_s": tokens / middle,
            **mfu(flop / middle, asked),
        }
    if "process" in ways:
        found["ratio"] = found["worker"]["tokens_s"] / found["process"]["tokens_s"]
    return {**found, "allocated_gb": torch.cuda.max_memory_allocated() / 1e9}


def process_step(stage: Stage, one: Work, device: str, *, compiled: bool) -> Step:
    """Return a step of one PyTorch process in the same precision, with fused AdamW."""
    low = precision(device) == "bf16"
    spec = PRESETS["gpt2-124m"].optimizer
    optimizer = torch.optim.AdamW(
        stage.parameters(), lr=1e-4, betas=(spec.beta1, spec.beta2), fused=True
    )
    x = torch.randn(one.sequences, one.spec.context, one.spec.width, device=device)
    out = x / 1000
    samples = [_tokens(one, number, device) for number in range(one.microbatches)]

    def passes(stage: Stage, given: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=low):
            hidden = stage.hidden(given)
            if not one.part.has_head:
                return hidden
            logits = stage.project(hidden)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    run = torch.compile(passes, dynamic=False) if compiled else passes
    total = one.microbatches * one.tokens

    def step() -> None:
        for inputs, targets in samples:
            if one.part.has_head:
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

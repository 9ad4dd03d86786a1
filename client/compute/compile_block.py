"""The process that compiles one block, compares it with the uncompiled one, and times both.

Started by `compiling` as `python -m client.compute.compile_block PARENT` with a `CompileJob` on
stdin; answers on stdout with a `Verdict`, and keeps a good one beside what it compiled. It runs
with less priority than its parent, and ends with it. Where several ask for the same at once, one
compiles and the others wait for its verdict.
"""

from __future__ import annotations

import fcntl
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from client.compute.compiling import (
    TOLERANCE,
    CompileJob,
    Verdict,
    compiled,
    prepare,
    run_alone,
)
from client.compute.worker import die_with_parent
from model_zoo.specs.slices import StageSlice
from model_zoo.stages import Stage, build_stage

_Run = Callable[[nn.Module, Tensor], Tensor]
_TURNS = 7


def judge(job: CompileJob) -> Verdict:
    """Compile the blocks of a job; say what came of it."""
    first, end = job.layers
    stage = build_stage(job.model, StageSlice(1, 3, first, end, embeds=False, has_head=False), 0)
    stage.precision = job.precision
    stage.to(job.device)
    run, begun = compiled(run_alone), time.perf_counter()
    try:
        apart = max(_apart(stage, block, run, job) for block in stage.blocks.values())
    except Exception as error:
        return Verdict(problem=_reason(error))
    seconds = time.perf_counter() - begun
    if not apart <= TOLERANCE[job.precision]:
        return Verdict(problem=f"a compiled one computes other numbers, {apart:.1g} apart")
    return Verdict(faster=_faster(stage, run, job), seconds=seconds, apart=apart)


def _reason(error: Exception) -> str:
    """Return the line of an error that says most: torch wraps what its compilers say."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def _input(job: CompileJob, *, wanted: bool) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(job.shape, generator=generator).to(job.device)
    return x.requires_grad_(wanted)


def _apart(stage: Stage, block: nn.Module, run: _Run, job: CompileJob) -> float:
    """Run a block in all ways in which a stage does; return the largest distance."""
    found = []
    wants = [True, False] if job.embeds else [True]
    for wanted in wants:
        ours = _forward_and_back(stage, block, run, _input(job, wanted=wanted))
        right = _forward_and_back(stage, block, run_alone, _input(job, wanted=wanted))
        found += [_distance(one, other) for one, other in zip(ours, right, strict=True)]
    with torch.no_grad(), stage.computing(torch.device(job.device)):
        x = _input(job, wanted=False)
        found.append(_distance(run(block, x), run_alone(block, x)))
    return max(found)


def _forward_and_back(stage: Stage, block: nn.Module, run: _Run, x: Tensor) -> list[Tensor]:
    """Return the output and all gradients."""
    trained = [each for each in block.parameters() if each.requires_grad]
    for parameter in trained:
        parameter.grad = None
    with stage.computing(x.device):
        output = run(block, x)
    if output.requires_grad:
        torch.autograd.backward(output, torch.ones_like(output))
    gradients = [x.grad, *(each.grad for each in trained)]
    return [output.detach(), *(each for each in gradients if each is not None)]


def _distance(ours: Tensor, right: Tensor) -> float:
    """Relative L2 distance; infinite where a number is not finite."""
    if not bool(torch.isfinite(ours).all()):
        return float("inf")
    size = float(torch.linalg.vector_norm(right.double().cpu()))
    apart = float(torch.linalg.vector_norm((ours - right).double().cpu()))
    return apart / size if size else apart


def _faster(stage: Stage, run: _Run, job: CompileJob) -> float:
    """Return the uncompiled block's median time by the compiled one's, measured in turns."""
    block = next(iter(stage.blocks.values()))
    taken: dict[_Run, list[float]] = {run: [], run_alone: []}
    for _ in range(_TURNS):
        for each, seconds in taken.items():
            x = _input(job, wanted=True)
            begun = _now(job.device)
            _forward_and_back(stage, block, each, x)
            seconds.append(_now(job.device) - begun)
    return statistics.median(taken[run_alone]) / statistics.median(taken[run])


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let no other process compile the same meanwhile."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def verdict_of(job: CompileJob) -> Verdict:
    """Return the verdict that is kept, or make it."""
    path = job.verdict_path
    with _alone(path.with_suffix(".lock")):
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Verdict)
        verdict = judge(job)
        if not verdict.problem:
            unfinished = path.with_suffix(".tmp")
            unfinished.write_bytes(msgspec.json.encode(verdict))
            unfinished.replace(path)
        return verdict


def main() -> int:
    """Entry point."""
    die_with_parent(int(sys.argv[1]))
    with _quietly():
        os.nice(5)
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=CompileJob)
        torch.set_num_threads(job.threads)
        torch.set_float32_matmul_precision("highest")  # as in the worker: the cache's key has it
        prepare(job.folder)
        verdict = verdict_of(job)
    sys.stdout.buffer.write(msgspec.json.encode(verdict))
    return 0


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what compilers print off the answer."""
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(answer, 1)


if __name__ == "__main__":
    sys.exit(main())

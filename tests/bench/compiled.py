"""Compiled blocks beside uncompiled ones: time of a stage forward and back; what compiling takes.

    python -m tests.bench.compiled [--layers 4] [--width 256] [--sequences 4] [--tokens 128]
                                   [--architecture gpt|llama] [--precision fp32|bf16] [--threads 1]
                                   [--device cpu] [--turns 15] [--record]

One block is compiled by the process that volunteers use, in an empty folder; then this process
finds it there, as a worker does. Both ways go in turns on the same numbers; the ratio of each turn
is taken. Peak memory is that of the compiling process.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import msgspec
import torch
from torch import Tensor

from client.compute.compiling import CompiledBlocks, CompileJob, Verdict, prepare
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice
from model_zoo.stages import Runner, Stage, build_stage, run_block
from tests.bench import figures as page

COMMAND = "python -m tests.bench.compiled"
MEASURES = ("client/compute/compiling.py", "client/compute/compile_block.py", "model_zoo/stages.py")


def compile_elsewhere(job: CompileJob) -> tuple[Verdict, float]:
    """Return the verdict of a compiling process, and its peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-m", "client.compute.compile_block", str(os.getpid())],
        input=msgspec.json.encode(job),
        stdout=subprocess.PIPE,
        check=True,
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return msgspec.json.decode(done.stdout, type=Verdict), peak


def step(stage: Stage, runner: Runner, x: Tensor) -> float:
    """Return the seconds of the stage forward and back."""
    stage.runner = runner
    stage.zero_grad()
    x = x.detach().requires_grad_()
    begun = _now(x.device)
    with stage.computing(x.device):
        output = stage.hidden(x)
    torch.autograd.backward(output, torch.ones_like(output))
    return _now(x.device) - begun


def kept_bytes(stage: Stage, runner: Runner, x: Tensor) -> int:
    """Return the bytes that a forward graph of the stage keeps, beside parameters."""
    own = {each.untyped_storage().data_ptr() for each in stage.parameters()}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    kept: list[Tensor] = []  # no address is used twice
    stage.runner = runner
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = stage.hidden(x.detach().requires_grad_())
    torch.autograd.backward(output, torch.ones_like(output))
    return sum(found.values())


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> int:
    """Measure, print, and record if asked; 1 if nothing could be compiled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="gpt")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="cpu")
    for name, usual in (("layers", 4), ("width", 256), ("sequences", 4), ("tokens", 128)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    heads = max(1, asked.width // 64)
    spec = ModelSpec(
        asked.architecture, asked.layers, asked.width, heads, heads, 4 * asked.width, asked.tokens
    )
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as folder:
        job = CompileJob(
            model=spec,
            layers=(0, 1),
            embeds=False,
            sequences=asked.sequences,
            tokens=asked.tokens,
            precision=asked.precision,
            device=asked.device,
            threads=asked.threads,
            folder=folder,
        )
        verdict, peak_mib = compile_elsewhere(job)
        if verdict.problem:
            print(f"blocks are not compiled: {verdict.problem}")
            return 1
        prepare(folder)
        part = StageSlice(1, 3, 0, asked.layers, embeds=False, has_head=False)
        stage = build_stage(spec, part, 0).to(asked.device)
        stage.precision = asked.precision
        x, blocks = torch.randn(job.shape, device=asked.device), CompiledBlocks(job.shape)
        found_s = step(stage, blocks, x)
        step(stage, run_block, x)
        pairs = [(step(stage, run_block, x), step(stage, blocks, x)) for _ in range(asked.turns)]
        graph = kept_bytes(stage, blocks, x) / kept_bytes(stage, run_block, x)
    ratios = sorted(plain / compiled for plain, compiled in pairs)
    what = (
        f"a stage of {asked.layers} {asked.architecture} blocks of width {asked.width}, "
        f"{asked.sequences} x {asked.tokens} tokens, {asked.precision}, {asked.device}, "
        f"{asked.threads} threads: speed forward and back with torch.compile against without"
    )
    value = f"**{statistics.median(ratios):.2f} x**"
    spread = (
        f"{ratios[0]:.2f}-{ratios[-1]:.2f} in {asked.turns} turns; numbers {verdict.apart:.0e} "
        f"apart; a kept graph has {graph:.2f} x the bytes; compiling took "
        f"{verdict.seconds:.0f} s and {peak_mib:.0f} MiB in its process, "
        f"finding it again {found_s:.1f} s"
    )
    print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record([page.figure("speed of training", what, value, spread, COMMAND, MEASURES)])
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An 8B Llama shape on a small machine: found it, plan it, open one of its stages, and train on it.

    python -m tests.bench.large_stage [founded] [opened] [--context 256] [--stages 8] [--record]

- founded and cut: `volunteer create --preset llama-3.1-8b` writes the swarm's file (all parameters
  are trained, with the vocabulary of bytes), in a folder that is removed.
- planned: adapters of rank 16 beside frozen weights in bf16, in so many stages.
- opened: stage 1 of that cut with random weights, one thread; one microbatch of one sequence goes
  forward and back. The memory is the most that the process had, beside what `plan` says.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import torch

from client.cli.founding.presets import PRESETS
from client.compute.requests import Backward, Forward, OpenStage
from model_zoo.specs.architecture import Lora
from model_zoo.specs.partition import cut
from model_zoo.specs.slices import frozen_bytes, slices, stage_parameter_count
from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.bench.patience import call, peak_bytes
from tests.support.compute_stages import LocalWorker

PRESET = "llama-3.1-8b"
LORA = Lora(16, 32.0, ("q_proj", "v_proj"), "bf16")
FOUNDED_STAGES = 32
STAGE = 1
MEASURES = ("client/compute", "client/cli/founding", "client/cli/planning", "model_zoo/models")


def main() -> None:
    """Do all of it and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="founded or opened; default: both")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--stages", type=int, default=8)
    add_record_flag(parser)
    given = parser.parse_args()
    parts = {
        "founded": lambda: founded(given.context),
        "opened": lambda: opened(
            given.context, given.stages, planned_bytes(given.context, given.stages)
        ),
    }
    for part in given.parts or parts:
        one = parts[part]()
        print(f"{one.what}: {one.value} ({one.spread})", flush=True)
        if given.record:
            record([one])


def founded(context: int) -> Figure:
    """Found a swarm that trains all parameters."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        shape = ("--preset", PRESET, "--stages", str(FOUNDED_STAGES), "--context", str(context))
        words = _volunteer(folder, "create", "--no-measure", *shape, "--out", f"{folder}/8b.swarm")
        seconds = time.monotonic() - begin
        size = Path(folder, "8b.swarm").stat().st_size
    line = next(line for line in words.splitlines() if line.startswith("a stage needs"))
    value = f"**founded** in {FOUNDED_STAGES} stages; {line}"
    return _figure(
        "8B Llama shape over bytes, all of it trained",
        value,
        f"{seconds:.0f} s, a file of {size:,} bytes",
    )


def planned_bytes(context: int, stages: int) -> float:
    """Return what `plan` says of the stage's memory."""
    adapters = ("--lora", str(LORA.rank), "--lora-base", LORA.base, "--context", str(context))
    machines = ("--machines", str(stages), "--gflops", "50", "--memory", "16GB", "--up", "20Mbit/s")
    run = ("--preset", PRESET, "--stages", str(stages), "--microbatch", "1", "--no-measure")
    with tempfile.TemporaryDirectory() as folder:
        answer = _volunteer(folder, "plan", "--json", *run, *adapters, *machines)
    return float(msgspec.json.decode(answer)["stages"][STAGE]["memory_bytes"])


def opened(context: int, stages: int, planned: float) -> Figure:
    """Open a body stage with random weights and run a microbatch through it and back."""
    spec = msgspec.structs.replace(PRESETS[PRESET].model, context=context, lora=LORA)
    layers = cut(spec, None, stages)
    part, worker, taken = slices(layers)[STAGE], LocalWorker(), [time.monotonic()]
    request = OpenStage(
        swarm="ab" * 32,
        model=spec,
        layers_per_stage=list(layers),
        stage=STAGE,
        seed=1,
        optimizer=PRESETS[PRESET].optimizer,
        boundary_codec="bf16",
        averaging_codec="s8",
        sequences=1,
        tokens=context,
    )
    before = peak_bytes()
    call(worker, request)
    taken.append(time.monotonic())
    generator = torch.Generator().manual_seed(0)
    tensor, wire = torch.randn((1, context, spec.width), generator=generator), worker.replica.wire
    forward_in, back_in = (bytes(wire.boundary_out(tensor, way)) for way in ("forward", "backward"))
    _, (sent,) = call(worker, Forward(step=0, microbatch=0), forward_in)
    taken.append(time.monotonic())
    _, (back,) = call(worker, Backward(step=0, microbatch=0), back_in)
    taken.append(time.monotonic())
    assert len(sent) == len(forward_in)
    assert len(back) == len(back_in)
    norm = float(worker.replica.gradient_sum.norm())
    assert norm > 0
    peak, frozen = peak_bytes(), frozen_bytes(spec, part)
    opening, forward, backward = (b - a for a, b in pairwise(taken))
    count = part.last_layer - part.first_layer
    what = (
        f"one stage of {stages} of the 8B shape opened: {count} layers, base in bf16, adapters of "
        f"rank {LORA.rank}"
    )
    value = (
        f"**{(peak - before) / 1e9:.2f} GB** at most, without the {before / 1e9:.2f} GB of the "
        f"process before (`plan`: {planned / 1e9:.2f}, with three graphs); "
        f"{frozen / 1e9:.2f} GB frozen, {stage_parameter_count(spec, part):,} trained"
    )
    spread = (
        f"opened in {opening:.0f} s; a sequence of {context} forward {forward:.0f} s, back "
        f"{backward:.0f} s, one thread; norm of the gradient {norm:.3g}"
    )
    return _figure(what, value, spread)


def _volunteer(home: str, *words: str) -> str:
    command = [sys.executable, "-m", "client.cli.main", *words]
    environment = os.environ | {"VOLUNTEER_HOME": home}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr if words[0] == "create" else done.stdout


def _figure(what: str, value: str, spread: str) -> Figure:
    return figure(
        "large models", what, value, spread, "python -m tests.bench.large_stage", MEASURES
    )


if __name__ == "__main__":
    main()

"""A worker whose vectors are offloaded to a file beside one that keeps them: memory and time.

    python -m tests.bench.offload [--layers 2] [--width 512] [--sequences 4] [--tokens 256]
                                  [--microbatches 4] [--steps 2] [--turns 3] [--threads 1]
                                  [--folder DIR] [--record]

Each way runs in a process of its own, in turns: microbatches forward and back, a round with S8,
the update, and once the snapshot and the writing of a checkpoint. Time is that of the thread that
computes, page faults included, and that of the clock, in which other programs count as well. Memory
is the peak of what is resident from the opening of the stage on (private pages, and those of mapped
files), less what the process had before, with a microbatch of 16 tokens so that it is not that of
activations, and in 3 times as many layers, half as wide again. On a GPU nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.compute import allowance, saving
from client.compute.executor import Executor
from client.compute.payload import Buffer
from client.compute.process import ALLOCATOR
from client.compute.requests import (
    Apply,
    Backward,
    Contribute,
    DecodeSum,
    Forward,
    OpenStage,
    Reduce,
    Save,
)
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from tests.bench import figures as page
from tests.support.compute_stages import LocalWorker

COMMAND = "python -m tests.bench.offload"
MEASURES = ("client/compute/offload.py", "client/compute/memory.py", "model_zoo/flat.py")
WAYS = ("kept", "offloaded")
NUMBERS = ("layers", "width", "sequences", "tokens", "microbatches", "steps", "threads")
VOCAB, SEGMENTS, FEW = 256, 16, 16


def opening(asked: argparse.Namespace, folder: str) -> OpenStage:
    """Return the request for the first stage of a model with GPT-2's proportions."""
    model = ModelSpec(
        architecture="gpt",
        layers=asked.layers + 1,
        width=asked.width,
        heads=asked.width // 64,
        kv_heads=asked.width // 64,
        ffn_width=4 * asked.width,
        vocab=VOCAB,
        context=asked.tokens,
    )
    offloaded = asked.way == "offloaded"
    return OpenStage(
        swarm="ab" * 32,
        model=model,
        layers_per_stage=[asked.layers, 1],
        stage=0,
        seed=0,
        optimizer=OptimizerSpec(),
        boundary_codec="s8",
        averaging_codec="s8",
        sequences=asked.sequences,
        tokens=asked.tokens,
        graphs_kept=0,
        threads=asked.threads,
        offload="disk" if offloaded else "off",
        offload_folder=folder if offloaded else "",
    )


def step(worker: LocalWorker, number: int, asked: argparse.Namespace) -> None:
    """Run a step of a stage's only replica, with the wire."""
    size = worker.replica.size
    for microbatch in range(asked.microbatches):
        drawn = np.random.default_rng(microbatch)
        shape = asked.sequences, asked.tokens + 1
        tokens = drawn.integers(VOCAB, size=shape, dtype=np.uint16).tobytes()
        identity: dict[str, Any] = {"step": number, "microbatch": microbatch}
        _, (boundary, *_) = worker.call(Forward(**identity, keep_graph=False), tokens)
        gradient = worker.replica.wire.boundary_out(
            worker.replica.wire.boundary_in(boundary, "forward", 0) / 100, "backward"
        )
        worker.call(Backward(**identity), gradient, tokens)
    aligned = [128 * (size // 128 * part // SEGMENTS) for part in range(SEGMENTS)]
    apply_round(worker, number, [*aligned, size], asked)


def apply_round(
    worker: LocalWorker, number: int, bounds: list[int], asked: argparse.Namespace
) -> None:
    """Average with nobody, over the wire's codec, and make the next version."""
    worker.call(Contribute(step=number, attempt=0, bounds=bounds))
    sums: list[Buffer] = []
    norms: list[float] = []
    for segment in range(SEGMENTS):
        identity: dict[str, Any] = {"step": number, "attempt": 0, "segment": segment}
        reply, sent = worker.call(Reduce(**identity, microbatches=[asked.microbatches], own=0))
        sums += sent
        norms.append(reply.squared_norm)
        worker.call(DecodeSum(**identity, squared_norm=norms[-1]), *sent)
    tokens = asked.microbatches * asked.sequences * asked.tokens
    request = Apply(step=number, attempt=0, bounds=bounds, squared_norms=norms, tokens=tokens)
    worker.call(request, *sums)


def run(asked: argparse.Namespace) -> None:
    """Run one way in this process; print its figures."""
    folder = str(asked.folder)
    saving.LOWEST_PRIORITY = 0  # other programs do not hold the saving up
    few = argparse.Namespace(**{**vars(asked), "layers": 1, "tokens": FEW, "sequences": 1})
    warm = LocalWorker()  # what torch's libraries take at their first use is no parameter's
    warm.call(opening(few, folder))
    step(warm, 0, few)
    del warm
    request = opening(asked, folder)
    before = resident()["VmRSS"]
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    worker = LocalWorker()
    worker.executor = Executor(owns_process=True)
    worker.call(request)
    step(worker, 0, asked)
    began, busy_before = time.perf_counter(), time.thread_time()
    for number in range(1, 1 + asked.steps):
        step(worker, number, asked)
        if number == 1:  # copied and written beside the next step
            path = Path(folder) / f"checkpoint-{os.getpid()}"
            save = Save(version=2, path=str(path), durable=False)
            worker.executor.execute(save, (), lambda reply, sent: None)
    taken = (time.perf_counter() - began) / asked.steps
    busy = time.thread_time() / asked.steps - busy_before / asked.steps
    worker.executor.close()
    path.unlink()
    need = allowance.stage_need(request)
    print(
        json.dumps(
            {
                "seconds": taken,
                "busy": busy,
                "bytes": (resident()["VmHWM"] - before) / worker.replica.size,
                "predicted": need.state_bytes / worker.replica.size,
                "parameters": worker.replica.size,
                "hash": int(worker.replica.state_hash()[:12], 16),
            }
        )
    )


def resident() -> dict[str, int]:
    """Return what the kernel counts of this process, in bytes: now, and at most."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    wanted = ("VmRSS:", "VmHWM:")
    return {line[0][:-1]: 1024 * int(line[1]) for line in lines if line and line[0] in wanted}


def measured(way: str, asked: argparse.Namespace, **changes: int) -> dict[str, float]:
    """Run one way in a process; return its figures."""
    flags = [f"--{name}={changes.get(name, getattr(asked, name))}" for name in NUMBERS]
    command = [sys.executable, "-m", "tests.bench.offload", *flags, "--way", way]
    surroundings = {**os.environ, **ALLOCATOR}
    ended = subprocess.run(
        [*command, "--folder", str(asked.folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=surroundings,
    )
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def memory_row(asked: argparse.Namespace) -> tuple[str, str, str]:
    """Measure bytes a parameter both ways."""
    few = {"tokens": FEW, "sequences": 1, "microbatches": 2, "steps": 2}
    large = {**few, "layers": 3 * asked.layers, "width": asked.width * 3 // 2}
    runs = max(1, asked.turns - 1)
    found = {way: [measured(way, asked, **large) for _ in range(runs)] for way in WAYS}
    refuse_other_bits([turn["hash"] for turns in found.values() for turn in turns])
    millions = found["kept"][0]["parameters"] / 1e6
    middle = {way: statistics.median(t["bytes"] for t in turns) for way, turns in found.items()}
    told = ", ".join(
        f"{way} {middle[way]:.1f} (predicted {found[way][0]['predicted']:.1f})" for way in WAYS
    )
    apart = "; ".join(
        f"{way} {min(t['bytes'] for t in turns):.1f} to {max(t['bytes'] for t in turns):.1f}"
        for way, turns in found.items()
    )
    what = (
        f"resident bytes a parameter with `--offload on`, {millions:.0f}M parameters, AdamW, S8, "
        "checkpoint written; 6 were asked for"
    )
    return what, f"**{middle['offloaded']:.1f}**: {told}", f"{apart}, runs of each: {runs}"


def time_row(asked: argparse.Namespace) -> tuple[str, str, str]:
    """Measure the time of a step both ways, in turns."""
    turns = []
    for number in range(asked.turns):
        order = WAYS if number % 2 == 0 else WAYS[::-1]
        turns.append({way: measured(way, asked) for way in order})
    refuse_other_bits([found["hash"] for turn in turns for found in turn.values()])
    walls, ratios = (
        sorted(turn["offloaded"][of] / turn["kept"][of] for turn in turns)
        for of in ("seconds", "busy")
    )
    seconds = {way: statistics.median(turn[way]["busy"] for turn in turns) for way in WAYS}
    tokens = asked.sequences * asked.tokens
    what = (
        f"step with `--offload on` by one without, {turns[0]['kept']['parameters'] / 1e6:.0f}M "
        f"parameters, {asked.microbatches} microbatches of {tokens} tokens, S8; 1.15 was asked for"
    )
    value = (
        f"**{statistics.median(ratios):.2f} x** of the processor's time: "
        f"{seconds['offloaded']:.1f} s against {seconds['kept']:.1f} s; by the clock "
        f"{statistics.median(walls):.2f} x"
    )
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}; by the clock {walls[0]:.2f} to {walls[-1]:.2f}"
    return what, value, f"{spread}; {asked.turns} turns"


def refuse_other_bits(hashes: Sequence[float]) -> None:
    """Stop if the ways did not end with the same version."""
    if len(set(hashes)) > 1:
        sys.exit(f"the ways ended with different bits: {hashes}")


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, usual in zip(NUMBERS, (2, 512, 4, 256, 4, 2, 1), strict=True):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to offload to; the temporary folder")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    if asked.way:
        run(asked)
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        asked.folder = Path(folder)
        rows = [memory_row(asked), time_row(asked)]
    for what, value, spread in rows:
        print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record(
            [page.figure("large models", *row, COMMAND, MEASURES) for row in rows],
        )


if __name__ == "__main__":
    main()

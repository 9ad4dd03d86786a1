"""A stage whose blocks are run again for the backward beside one with whole graphs: memory, time.

    python -m tests.bench.rerun [--layers 6] [--width 768] [--sequences 4] [--tokens 1024]
                                [--turns 3] [--threads 2] [--record]

Each way runs in a process of its own, in turns, one microbatch forward and back after one to warm
up. The memory is the peak of the process less what it held with parameters and gradients, beside
what `client.compute.memory` predicts of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import psutil
import torch

from client.compute.allowance import give_back_at_once
from client.compute.memory import required_bytes
from client.compute.process import ALLOCATOR
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices
from model_zoo.specs.state import StateSpec
from model_zoo.stages import build_stage
from tests.bench import figures as page

COMMAND = "python -m tests.bench.rerun"
MEASURES = ("model_zoo/stages.py", "client/compute/memory.py")
WAYS = ("whole", "again")
NUMBERS = ("layers", "width", "sequences", "tokens", "threads")


def shape(asked: argparse.Namespace) -> ModelSpec:
    """Return a model with GPT-2's proportions, the stage and one layer after it."""
    return ModelSpec(
        architecture="gpt",
        layers=asked.layers + 1,
        width=asked.width,
        heads=asked.width // 64,
        kv_heads=asked.width // 64,
        ffn_width=4 * asked.width,
        vocab=256,
        context=asked.tokens,
    )


def run(asked: argparse.Namespace) -> None:
    """Run one microbatch in this process; print its figures."""
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    stage = build_stage(shape(asked), slices((asked.layers, 1))[0], 0)
    stage.reruns_blocks = asked.way == "again"
    if stage.reruns_blocks:
        give_back_at_once()
    tokens = torch.randint(256, (asked.sequences, asked.tokens))
    for each in stage.parameters():
        each.grad = torch.zeros_like(each)
    stage(tokens[:1, :64]).sum().backward()
    held = psutil.Process().memory_info().rss
    began = time.perf_counter()
    output = stage(tokens)
    output.backward(torch.ones_like(output))
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"mib": (peak - held) / 2**20, "seconds": taken}))


def measured(way: str, asked: argparse.Namespace) -> dict[str, float]:
    """Run one way in a process; return its MiB and seconds."""
    flags = [f"--{name}={getattr(asked, name)}" for name in NUMBERS]
    command = [sys.executable, "-m", "tests.bench.rerun", *flags, "--way", way]
    surroundings = {**os.environ, **ALLOCATOR}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def predicted_mib(way: str, asked: argparse.Namespace) -> float:
    """Return what the worker reckons for one graph."""
    need = required_bytes(
        shape(asked),
        layers_per_stage=(asked.layers, 1),
        stage=0,
        sequences=asked.sequences,
        tokens=asked.tokens,
        graphs_kept=0,
        averaging_codec="fp32",
        state=StateSpec(),
        reruns_blocks=way == "again",
    )
    return (need.graph_bytes + need.block_bytes) / 2**20


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, usual in zip(NUMBERS, (6, 768, 4, 1024, 2), strict=True):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    if asked.way:
        run(asked)
        return
    turns = [{way: measured(way, asked) for way in WAYS} for _ in range(asked.turns)]
    mib = {way: statistics.median(turn[way]["mib"] for turn in turns) for way in WAYS}
    ratios = sorted(turn["again"]["seconds"] / turn["whole"]["seconds"] for turn in turns)
    what = (
        f"{asked.layers} layers of width {asked.width}, {asked.sequences} x {asked.tokens} tokens: "
        "blocks run again / whole graphs"
    )
    told = ", ".join(
        f"{way} {mib[way]:.0f} MiB (predicted {predicted_mib(way, asked):.0f})" for way in WAYS
    )
    share = mib["again"] / mib["whole"]
    value = f"memory **{share:.3f}**, time {statistics.median(ratios):.2f}: {told}"
    spread = f"time {ratios[0]:.2f} to {ratios[-1]:.2f}, {asked.turns} turns"
    print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record([page.figure("large models", what, value, spread, COMMAND, MEASURES)])


if __name__ == "__main__":
    main()

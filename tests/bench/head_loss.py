"""The loss of a large vocabulary in pieces beside all logits at once: memory, time, gradients.

    python -m tests.bench.head_loss [--tokens 4096] [--vocab 128256] [--width 256] [--turns 3]
                                    [--threads 2] [--record]

Each way runs in a process of its own, forward and back; the memory is the peak of the process less
what it held with parameters, hidden state and their gradients already there. Both go in turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from model_zoo import head_loss
from model_zoo.specs import model
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage
from tests.bench import figures as page

COMMAND = "python -m tests.bench.head_loss"
MEASURES = ("model_zoo/head_loss.py", "model_zoo/specs/model.py", "model_zoo/stages.py")
WAYS = ("at once", "in pieces")


def run(way: str, *, tokens: int, vocab: int, width: int, threads: int, out: Path) -> None:
    """Run the head once in this process; print its figures and write its gradients."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    if way == "at once":
        model.LOGITS_AT_ONCE = tokens * vocab
    spec = ModelSpec(
        architecture="llama",
        layers=2,
        width=width,
        heads=width // 64,
        kv_heads=width // 64,
        ffn_width=width,
        vocab=vocab,
        context=tokens,
    )
    stage = build_stage(spec, slices((1, 1))[1], 0)
    hidden = torch.randn(1, tokens, width, requires_grad=True)
    targets = torch.randint(vocab, (1, tokens))
    for each in (hidden, *stage.projecting):
        each.grad = torch.zeros_like(each)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    _, whole = head_loss.losses_of_hidden(stage, hidden, targets, z_weight=0.0, weight=1.0)
    whole.backward()  # type: ignore[no-untyped-call]
    taken = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"mib": (peak - before) / 1024, "seconds": taken}))
    torch.save([each.grad for each in (hidden, *stage.projecting)], out)


def measured(way: str, asked: argparse.Namespace, out: Path) -> dict[str, float]:
    """Run one way in a process; return its MiB and seconds."""
    numbers = {name: getattr(asked, name) for name in ("tokens", "vocab", "width", "threads")}
    flags = [f"--{name}={value}" for name, value in numbers.items()]
    command = [sys.executable, "-m", "tests.bench.head_loss", *flags, "--way", way, "--out", out]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    if asked.way:
        sizes = {name: getattr(asked, name) for name in ("tokens", "vocab", "width", "threads")}
        run(asked.way, out=asked.out, **sizes)
        return
    with TemporaryDirectory() as folder:
        paths = {way: Path(folder) / way for way in WAYS}
        turns = [
            {way: measured(way, asked, paths[way]) for way in WAYS} for _ in range(asked.turns)
        ]
        one, other = (torch.load(paths[way], weights_only=True) for way in WAYS)
    apart = max(float((a - b).norm() / a.norm()) for a, b in zip(one, other, strict=True))
    mib = {way: statistics.median(turn[way]["mib"] for turn in turns) for way in WAYS}
    ratios = sorted(turn[WAYS[1]]["seconds"] / turn[WAYS[0]]["seconds"] for turn in turns)
    what = f"head of {asked.tokens} tokens, vocabulary {asked.vocab:,}: in pieces / at once"
    share = mib["in pieces"] / mib["at once"]
    value = (
        f"memory **{share:.3f}** ({mib['in pieces']:.0f} / {mib['at once']:.0f} MiB), "
        f"time {statistics.median(ratios):.2f}, gradients {apart:.1e} apart"
    )
    spread = f"time {ratios[0]:.2f} to {ratios[-1]:.2f}, {asked.turns} turns, width {asked.width}"
    print(f"{what}: {value} ({spread})")
    if asked.record:
        page.record([page.figure("large models", what, value, spread, COMMAND, MEASURES)])


if __name__ == "__main__":
    main()

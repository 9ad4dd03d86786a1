"""Two stages, a process and a thread each: ours, PyTorch's Schedule1F1B, and one process.

Contenders take turns; each turn trains the same first steps again and gives the tokens per second
of every step but the first.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from client.cli.founding.options import ModelChoices, RunChoices
from client.compute.process import ALLOCATOR
from client.lab.founding import HOST, write_lab
from client.lab.local_swarm import LocalSwarm
from protocol.invite import SwarmFile
from protocol.manifest import Manifest

REFERENCE, OURS, TORCH = "one process", "ours", "1F1B"
STEPS = 3
"""Steps of a turn, of which the first one warms up."""
TIMEOUT_S = 600.0
ROOT = Path(__file__).parents[3]
NAMES = ("volunteer-1", "volunteer-2")
JOIN_FLAGS = ("--listen-host", HOST, "--threads", "1")
SWARM_FILE = "bench.swarm"
START_TIMEOUT_S = 60.0


class Turn(Struct, frozen=True):
    """One contender in one round."""

    who: str
    round: int
    tokens_per_s: list[float]
    losses: list[float] = []


Rates = tuple[list[float], list[float]]
"""Tokens per second of every step but the first, and the losses where they are known."""


@dataclass(frozen=True)
class Work:
    """The model and the run."""

    run: RunChoices
    model: ModelChoices

    def __str__(self) -> str:
        run, model = self.run, self.model
        return (
            f"GPT {model.layers} x {model.width}, context {model.context}, "
            f"{run.microbatches} microbatches of {run.sequences}"
        )

    def found(self, folder: Path) -> SwarmFile:
        """Found a swarm that does this work."""
        return write_lab(folder / SWARM_FILE, folder / NAMES[0], self.run, self.model)


RUN = RunChoices(
    name="efficiency",
    optimizer="adamw",
    stages=2,
    steps=STEPS,
    sequences=8,
    microbatches=16,
    redundancy=1,
    dual_homing=False,  # one stage each, as the comparison requires
)
FULL = Work(RUN, ModelChoices(layers=8, width=256, heads=8, context=256))
QUICK = Work(replace(RUN, microbatches=8), ModelChoices(layers=4, width=128, heads=4, context=128))


def measured(work: Work, rounds: int, say: Callable[[str], None]) -> Iterator[Turn]:
    """Let the contenders take turns for so many rounds."""
    contenders = {REFERENCE: one_process, OURS: ours, TORCH: one_f_one_b}
    for number, (who, contender) in itertools.product(range(rounds), contenders.items()):
        say(f"round {number + 1} of {rounds}: {who}")
        with tempfile.TemporaryDirectory(prefix="vol") as folder:
            turn = Turn(who, number, *contender(work, Path(folder)))
        yield turn
        say(f"  {statistics.median(turn.tokens_per_s):.0f} tokens/s")


def ours(work: Work, folder: Path) -> Rates:
    """Run a real swarm of two volunteers."""
    swarm = work.found(folder)
    return rates(swarm.manifest, swarm_moments(swarm, folder)), []


def swarm_moments(swarm: SwarmFile, homes: Path) -> list[float]:
    """Run the swarm founded in ``homes``; return the times of its commits, Unix seconds.

    Raises:
        UserError: it did not do its steps in time.
    """
    steps = swarm.manifest.steps
    with LocalSwarm(homes / SWARM_FILE, homes, homes / "logs") as processes:
        first = processes.start(NAMES[0], JOIN_FLAGS)
        processes.wait("an answer", first.snapshot, START_TIMEOUT_S)
        processes.start(NAMES[1], JOIN_FLAGS)
        processes.wait(f"{steps} steps", lambda: len(processes.committed()) >= steps, TIMEOUT_S)
        return [at for _, at in sorted(processes.committed().items())]


def one_process(work: Work, folder: Path) -> Rates:
    """Run the reference trainer with both threads."""
    manifest, path = _manifest(work, folder)
    with _python("one_process", str(path)) as process:
        [said] = _answers([process])
    return rates(manifest, said["moments"][1:]), said["losses"]


def one_f_one_b(work: Work, folder: Path) -> Rates:
    """Run PyTorch's pipeline in two processes."""
    manifest, path = _manifest(work, folder)
    parts = [(str(path), str(rank), str(folder / "store")) for rank in range(2)]
    with _python("one_f_one_b", *parts[0]) as first, _python("one_f_one_b", *parts[1]) as last:
        said = _answers([first, last])
    return rates(manifest, said[0]["moments"][1:]), said[1]["losses"]


def rates(manifest: Manifest, ends: Sequence[float]) -> list[float]:
    """Return the tokens per second of every step but the first, from when each of them ended."""
    tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    return [round(tokens / (end - begin), 1) for begin, end in itertools.pairwise(ends)]


def _manifest(work: Work, folder: Path) -> tuple[Manifest, Path]:
    manifest = work.found(folder).manifest
    path = folder / "manifest.json"
    path.write_bytes(msgspec.json.encode(manifest))
    return manifest, path


def _python(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a rival of this package, with the allocator's settings that our worker has."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.bench.rivals.{module}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **ALLOCATOR, "GLOO_SOCKET_IFNAME": "lo"},
    )


def _answers(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Wait for what they print; leave none of them behind."""
    try:
        return [json.loads(p.communicate(timeout=TIMEOUT_S)[0]) for p in processes]
    finally:
        for process in processes:
            process.kill()

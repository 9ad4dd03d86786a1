"""Two stages, a process and a thread each: ours, PyTorch's Schedule1F1B, and one process.

The work is that of ``volunteer bench --efficiency``. Contenders take turns; each turn trains the
same first steps again and gives the tokens per second of every step but the first. Beside them the
efficiency model's bound, min(compute, link), from stages timed at the same moment.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from client.cli.founding.options import ModelChoices, RunChoices
from client.compute.process import ALLOCATOR
from client.lab.bench.efficiency import MODEL, RUN, found, swarm_moments
from protocol.invite import SwarmFile
from protocol.manifest import Manifest
from tests.bench.rivals.records import Record, Records, load
from tests.bench.rivals.swarm_of_peers import environ
from tests.bench.timing import expected

PART = "pipeline"
BOUND, REFERENCE, OURS, TORCH = "bound", "one process", "ours", "1F1B"
STEPS = 3
"""Steps of a turn, of which the first one warms up."""
TIMEOUT_S = 600.0
Say = Callable[[str], None]
Turn = tuple[list[float], dict[str, Any]]


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
        return found(folder, replace(self.run, steps=STEPS), self.model)


FULL = Work(RUN, MODEL)
QUICK = Work(replace(RUN, microbatches=8), ModelChoices(layers=4, width=128, heads=4, context=128))


def measure(records: Records, rounds: int, say: Say, *, quick: bool = False) -> None:
    """Let the contenders take turns for so many rounds."""
    work = QUICK if quick else FULL
    turns = {BOUND: bound, REFERENCE: one_process, OURS: ours, TORCH: one_f_one_b}
    for number, (who, turn) in itertools.product(range(rounds), turns.items()):
        if records.has(PART, str(work), who, number):
            continue
        say(f"pipeline, round {number + 1} of {rounds}: {who}")
        with tempfile.TemporaryDirectory(prefix="vol") as folder:
            values, more = turn(work, Path(folder))
        busy = round(load(), 2)
        records.add(Record(PART, str(work), who, number, values, "tokens/s", busy, more))
        say(f"  {statistics.median(values):.0f} tokens/s")


def ours(work: Work, folder: Path) -> Turn:
    """Run a real swarm of two volunteers."""
    swarm = work.found(folder)
    return rates(swarm.manifest, swarm_moments(swarm, folder)), {}


def one_process(work: Work, folder: Path) -> Turn:
    """Run the reference trainer with both threads."""
    manifest, path = _manifest(work, folder)
    with _python("one_process", str(path), str(STEPS)) as process:
        [said] = _answers([process])
    return rates(manifest, said["moments"][1:]), {"losses": said["losses"]}


def one_f_one_b(work: Work, folder: Path) -> Turn:
    """Run PyTorch's pipeline in two processes."""
    manifest, path = _manifest(work, folder)
    parts = [(str(path), str(rank), str(folder / "store"), str(STEPS)) for rank in range(2)]
    with _python("one_f_one_b", *parts[0]) as first, _python("one_f_one_b", *parts[1]) as last:
        said = _answers([first, last])
    return rates(manifest, said[0]["moments"][1:]), {"losses": said[1]["losses"]}


def bound(work: Work, folder: Path) -> Turn:
    """Return what the efficiency model allows at most: the slowest stage never waits."""
    prediction = expected(_manifest(work, folder)[0])
    more = {"predicted": round(prediction.tokens_per_s, 1), "limit": prediction.limit}
    return [round(prediction.tokens_per_s / prediction.efficiency, 1)], more


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
        env=environ({**ALLOCATOR, "GLOO_SOCKET_IFNAME": "lo"}),
    )


def _answers(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Wait for what they print; leave none of them behind."""
    try:
        return [json.loads(p.communicate(timeout=TIMEOUT_S)[0]) for p in processes]
    finally:
        for process in processes:
            process.kill()

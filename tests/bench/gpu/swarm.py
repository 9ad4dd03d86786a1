"""Two volunteers, a stage each, on the one device; then both pause."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from client.cli.founding.presets import PRESETS
from client.lab.founding import write_lab
from client.lab.local_swarm import LocalSwarm, Member, environment, terminate_as_interrupt
from model_zoo.datasets.build import build
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice
from tests.bench.gpu.work import H100_FLOPS, Found


def swarm(asked: argparse.Namespace) -> Found:
    """Train in a swarm of two volunteers on the device, then let them pause."""
    from client.cli.founding.options import RunChoices

    end = time.monotonic() + asked.limit - 25
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as name:
        folder = Path(name)
        data = asked.data or ("stdlib" if asked.small else made_up(folder))
        run = RunChoices(
            preset="tiny" if asked.small else "gpt2-124m",
            name="gpu",
            data=data,
            optimizer="adamw",
            stages=2,
            steps=10_000,
            sequences=16,
            microbatches=asked.microbatches,
            redundancy=1,
            dual_homing=False,
            compute_dtype="fp32" if asked.device == "cpu" else "bf16",
            measure=False,
            evaluate_every=0,
        )
        manifest = write_lab(folder / "x.swarm", folder / "volunteer-1", run).manifest
        with LocalSwarm(folder / "x.swarm", folder, folder / "logs") as processes:
            moments, views = trained(processes, asked, end)
            told = paused(processes.members)
            told["logs"] = {member.name: member.log_tail(12) for member in processes.members}
    told |= {"steps": len(moments), "views": views}
    told["intervals"] = intervals = [b - a for a, b in itertools.pairwise(moments)]
    if len(moments) > 3:
        spec, seconds = manifest.model, statistics.median(intervals[1:])  # the first warms up
        tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
        whole = StageSlice(0, 1, 0, spec.layers, embeds=True, has_head=True)
        told["tokens_s"] = tokens / seconds
        told["mfu_of_989"] = flops_per_token(spec, whole) * tokens / seconds / H100_FLOPS
    return told


def trained(
    processes: LocalSwarm, asked: argparse.Namespace, end: float
) -> tuple[list[float], Found]:
    """Let two volunteers train until ``end`` (monotonic seconds), or so many steps; return when
    each was committed, and what the volunteers say of their workers."""
    threads = max(1, (os.cpu_count() or 1) // 4)
    flags = ("--listen-host", "127.0.0.1", "--device", asked.device, "--threads", str(threads))
    flags = (*flags, "--compile", str(asked.compile))
    first = processes.start("volunteer-1", flags)
    first.wait_until_it_answers(90)
    processes.start("volunteer-2", flags)
    committed: dict[int, float] = {}
    views: Found = {}
    while len(committed) < asked.steps and time.monotonic() < end:
        if not all(member.alive for member in processes.members):
            break
        for event in first.new_events():
            step = event.data.get("step")
            if event.kind == "StepCommitted" and isinstance(step, int):
                committed.setdefault(step, event.time)
        for member in processes.members:
            now = member.snapshot()
            if now is not None and len(committed) > 3:
                views[member.name] = [
                    {"stage": each.stage, "mfu": each.mfu, "mfu_computing": each.mfu_computing}
                    for each in now.workers
                ]
        time.sleep(0.2)
    return [committed[step] for step in sorted(committed)], views


def made_up(folder: Path) -> str:
    """Build tokens of words that mean nothing, as many as the model knows; return the folder."""
    rng, words = random.Random(1), set[str]()
    while len(words) < 60_000:
        words.add("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))))
    text, vocab = folder / "words.txt", PRESETS["gpt2-124m"].model.vocab
    text.write_text(3 * (" ".join(sorted(words)) + "\n"))
    made = build([text], folder / "tokens", tokenizer=vocab, workers=1)
    if made.index.tokenizer is None or made.index.tokenizer.vocab != vocab:
        raise SystemExit(f"the words make fewer than {vocab} tokens")
    return str(made.path)


def paused(members: Sequence[Member]) -> Found:
    """Pause volunteers; return what they say, and the device's memory before and after."""
    told: Found = {}
    before = after = driver_mib()
    for member in members:
        done = subprocess.run(
            [sys.executable, "-m", "client.cli.main", "pause"],
            env=environment(member.home),
            capture_output=True,
            text=True,
        )
        told[f"pause {member.name}"] = (done.stdout + done.stderr)[-200:]
    end = time.monotonic() + 15
    while before and time.monotonic() < end:
        after = driver_mib()
        if after is not None and after < before / 10:
            break
        time.sleep(0.5)
    told["driver MiB before and after pausing"] = [before, after]
    return told


def driver_mib() -> float | None:
    """Return the device's memory in use as its driver counts it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return float(done.stdout.split()[0])

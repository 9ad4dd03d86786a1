"""Two volunteers, a stage each, on the one device."""

import argparse
import itertools
import random
import statistics
import string
import tempfile
import time
from pathlib import Path

from client.cli.founding.options import RunChoices
from client.cli.founding.presets import PRESETS
from client.lab.founding import write_lab
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.store.paths import Entry
from model_zoo.datasets.build import build
from model_zoo.specs.operations import flops_per_token
from model_zoo.specs.slices import StageSlice
from tests.bench.gpu.running import Found, cores, tell
from tests.bench.gpu.work import mfu, precision

NAMES = ("volunteer-1", "volunteer-2")
STEPS = 12
STOPPING_S = 15.0


def swarm(asked: argparse.Namespace) -> Found:
    """Train in a swarm of two volunteers on the device."""
    end = time.monotonic() + asked.deadline - STOPPING_S
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as name:
        folder = Path(name)
        run = RunChoices(
            preset="tiny" if asked.small else "gpt2-124m",
            name="gpu",
            data="stdlib" if asked.small else made_up(folder),
            optimizer="adamw",
            stages=2,
            steps=10_000,
            sequences=16,
            microbatches=4 if asked.small else 16,
            redundancy=1,
            dual_homing=False,
            compute_dtype=precision(asked.device),
            measure=False,
            evaluate_every=0,
        )
        manifest = write_lab(folder / "x.swarm", folder / "volunteer-1", run).manifest
        with LocalSwarm(folder / "x.swarm", folder, folder / "logs") as processes:
            moments = trained(processes, folder, asked, end)
            intervals = [b - a for a, b in itertools.pairwise(moments)]
            logs = {each.name: each.log_tail(8) for each in processes.members}
            told: Found = {"steps": len(moments), "intervals": intervals, "logs": logs}
            if len(moments) > 3:
                seconds = statistics.median(intervals[1:])  # the first warms up
                tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
                whole = StageSlice(0, 1, 0, manifest.model.layers, embeds=True, has_head=True)
                flop = flops_per_token(manifest.model, whole) * tokens
                told |= {"tokens_s": tokens / seconds, **mfu(flop / seconds, asked)}
            tell(asked, told)
            began = time.monotonic()
    return {"stopped_s": time.monotonic() - began}


def trained(
    processes: LocalSwarm, folder: Path, asked: argparse.Namespace, end: float
) -> list[float]:
    """Let two volunteers train until ``end`` (monotonic seconds), or so many steps; return when
    each was committed. They find what earlier parts have compiled."""
    flags = ("--listen-host", "127.0.0.1", "--device", asked.device, "--compile", "auto")
    flags += ("--threads", str(max(1, cores() // 4)))
    asked.cache.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        home = folder / name
        home.mkdir(mode=0o700, exist_ok=True)
        (home / Entry.COMPILED).symlink_to(asked.cache)
    first = processes.start(NAMES[0], flags)
    processes.wait("an answer", first.snapshot, 90)
    processes.start(NAMES[1], flags)
    steps = 5 if asked.small else STEPS
    while len(processes.committed()) < steps and time.monotonic() < end:
        if not all(member.alive for member in processes.members):
            break
        time.sleep(0.2)
    return [at for _, at in sorted(processes.committed().items())]


def made_up(folder: Path) -> str:
    """Build tokens of words that mean nothing, as many as the model knows; return the folder."""
    rng, words = random.Random(1), set[str]()
    while len(words) < 60_000:
        words.add("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))))
    text, vocab = folder / "words.txt", PRESETS["gpt2-124m"].model.vocab
    text.write_text(3 * (" ".join(sorted(words)) + "\n"))
    made = build([text], folder / "tokens", tokenizer=vocab)
    if made.index.spec.tokenizer is None or made.index.spec.tokenizer.vocab != vocab:
        raise SystemExit(f"the words make fewer than {vocab} tokens")
    return str(made.path)

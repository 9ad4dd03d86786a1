"""GPT-2 124M (vocabulary of 50,257, context of 1,024) in two stages on this machine.

    python -m tests.bench.gpt2 memory [STAGE] [--record]
    python -m tests.bench.gpt2 speed [DATA] [--microbatches 16] [--steps 3] [--record]

- ``memory``: each stage in a process of its own takes as many microbatches forward as it keeps
  graphs of, and one more; all go back, a contribution in s8 is encoded and summed with another
  replica's, the update is applied and a checkpoint written. All of it twice: then a checkpoint's
  copy lies beside the graphs. Most memory, less what the process had before, beside what `plan`
  says.
- ``speed``: a swarm of two volunteers with one thread each, and one PyTorch process with two
  threads before it and after it. DATA is a folder of `volunteer data build` with 50,257 tokens;
  without one, words that mean nothing are made into as many tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from client.cli.founding.manifest import open_corpus
from client.cli.founding.options import ModelChoices, RunChoices
from client.cli.founding.presets import PRESETS
from client.compute.requests import (
    Apply,
    Backward,
    Contribute,
    Forward,
    ForwardBackward,
    OpenStage,
    Reduce,
    Save,
)
from client.lab.bench.efficiency import found, median_interval, swarm_moments, training_plan
from client.lab.local_swarm import terminate_as_interrupt
from model_zoo.datasets.build import build
from model_zoo.reference import TrainingPlan, train_reference
from model_zoo.specs.partition import cut
from tests.bench.figures import Figure, add_record_flag, figure, record
from tests.bench.patience import call, peak_bytes
from tests.support.compute_stages import LocalWorker

PRESET = "gpt2-124m"
STAGES = 2
GRAPHS_KEPT = 2
"""As `create` and `plan` count them."""
THREADS = 2
STEPS = 2
"""Of a stage whose memory is measured."""
MEASURES = ("client/compute", "model_zoo/models", "model_zoo/reference.py", "client/train")


def main() -> None:
    """Measure what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("memory", "speed", "stage"))
    parser.add_argument("data", nargs="?", help="folder of tokens; else the number of a stage")
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    add_record_flag(parser)
    given = parser.parse_args()
    if given.part == "stage":
        print(json.dumps(taken_bytes(int(given.data))))
        return
    if given.part == "memory":
        stages = range(STAGES) if given.data is None else [int(given.data)]
        figures = [memory(stage) for stage in stages]
    else:
        with tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
            data = given.data or made_up(Path(folder))
            figures = [speed(data, given.microbatches, given.steps)]
    for one in figures:
        print(f"{one.what}: {one.value} ({one.spread})", flush=True)
    if given.record:
        record(figures)


def memory(stage: int) -> Figure:
    """Compare the memory of a stage with the plan's."""
    itself = [sys.executable, "-m", "tests.bench.gpt2", "stage", str(stage)]
    done = subprocess.run(itself, check=True, capture_output=True, text=True)
    before, peak, loss = json.loads(done.stdout)
    planned, taken = planned_bytes()[stage], peak - before
    what = f"GPT-2 124M, stage {stage} of {STAGES}: memory against `plan`"
    value = f"**{taken / planned:.2f}** ({taken / 1e9:.2f} GB against {planned / 1e9:.2f})"
    spread = f"one run, without the {before / 1e9:.2f} GB of the process before"
    return _figure("memory", what, value, spread if loss is None else f"{spread}; loss {loss:.2f}")


def planned_bytes() -> list[float]:
    """Return what `plan` says of the stages."""
    machines = ("--machines", str(STAGES), "--gflops", "50", "--memory", "16GB", "--up", "1MB/s")
    run = ("--preset", PRESET, "--stages", str(STAGES), "--microbatch", "1", "--no-measure")
    command = [sys.executable, "-m", "client.cli.main", "plan", "--json", *run, *machines]
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"VOLUNTEER_HOME": home}
        done = subprocess.run(command, check=True, env=environment, capture_output=True)
    return [float(line["memory_bytes"]) for line in json.loads(done.stdout)["stages"]]


def taken_bytes(stage: int) -> tuple[int, int, float | None]:
    """Run a stage through a step; return the process's memory before, the most, and the loss."""
    preset = PRESETS[PRESET]
    spec, context = preset.model, preset.model.context
    worker, before = LocalWorker(), peak_bytes()
    request = OpenStage(
        swarm="ab" * 32,
        model=spec,
        layers_per_stage=list(cut(spec, None, STAGES)),
        stage=stage,
        seed=1,
        optimizer=preset.optimizer,
        boundary_codec="bf16",
        averaging_codec="s8",
        sequences=1,
        tokens=context,
        graphs_kept=GRAPHS_KEPT,
    )
    call(worker, request)
    microbatches = range(GRAPHS_KEPT + 1)
    hidden, loss = torch.randn((1, context, spec.width)), None
    way: Literal["forward", "backward"] = "backward" if stage == 0 else "forward"
    tensor = bytes(worker.replica.wire.boundary_out(hidden, way))
    tokens = np.random.default_rng(1).integers(spec.vocab, size=(1, context + 1)).astype("<u2")
    for step in range(STEPS):  # in the second one there is a checkpoint's copy beside the graphs
        first = step * len(microbatches)
        if stage == 0:
            for number in microbatches:
                call(worker, Forward(step=step, microbatch=first + number), tokens.tobytes())
            for number in microbatches:
                back = Backward(step=step, microbatch=first + number)
                call(worker, back, tensor, tokens.tobytes())
        else:
            for number in microbatches:
                both = ForwardBackward(
                    step=step, microbatch=first + number, tokens=tokens.tobytes()
                )
                counted, _ = call(worker, both, tensor)
            loss = counted.loss_sum / context
        _finish(worker, step, 2 * len(microbatches) * context)
    return before, peak_bytes(), loss


def _finish(worker: LocalWorker, step: int, tokens: int) -> None:
    """End a step with another replica that contributes the same, and write a checkpoint."""
    size = worker.replica.size
    bounds = [0, size // 256 * 128, size]
    _, sent = call(worker, Contribute(step=step, attempt=0, bounds=bounds, tokens=tokens))
    sums, norms = list[bytes](), list[float]()
    for segment, theirs in enumerate(sent):
        reduce = Reduce(step=step, attempt=0, segment=segment, microbatches=[1, 1], own=0)
        reduced, (encoded,) = call(worker, reduce, theirs)
        sums.append(encoded)
        norms.append(reduced.squared_norm)
    apply = Apply(step=step, attempt=0, bounds=bounds, squared_norms=norms, tokens=tokens)
    call(worker, apply, *sums)
    with tempfile.TemporaryDirectory() as folder:
        call(worker, Save(version=step + 1, path=f"{folder}/checkpoint"))


def made_up(folder: Path) -> str:
    """Build tokens of words that mean nothing, as many as the model knows; return the folder."""
    rng, words = random.Random(1), set[str]()
    while len(words) < 60_000:
        words.add("".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 9))))
    text, vocab = folder / "words.txt", PRESETS[PRESET].model.vocab
    text.write_text(3 * (" ".join(sorted(words)) + "\n"))
    made = build([text], folder / "tokens", tokenizer=vocab, workers=1)
    if made.index.tokenizer is None or made.index.tokenizer.vocab != vocab:
        raise SystemExit(f"the words make fewer than {vocab} tokens")
    return str(made.path)


def speed(data: str, microbatches: int, steps: int) -> Figure:
    """Time a swarm and one process on the same work."""
    run = RunChoices(
        preset=PRESET,
        name="gpt2",
        data=data,
        stages=STAGES,
        steps=steps,
        sequences=1,
        microbatches=microbatches,
        redundancy=1,
        dual_homing=False,
    )
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        swarm = found(Path(folder), run, ModelChoices())
        plan = training_plan(swarm.manifest)
        before = _process_s(plan, data, steps)
        taken = median_interval(swarm_moments(swarm, Path(folder)))
        after = _process_s(plan, data, steps)
    tokens = microbatches * swarm.manifest.tokens_per_microbatch
    process = statistics.mean((before, after))
    what = "GPT-2 124M, two stages: tokens/s against one PyTorch process of two threads"
    value = f"**{process / taken:.2f}** ({tokens / taken:.0f} against {tokens / process:.0f})"
    spread = f"{steps} steps of {microbatches} x {swarm.manifest.model.context}"
    return _figure("speed", what, value, spread)


def _process_s(plan: TrainingPlan, data: str, steps: int) -> float:
    """Return the median seconds of a step in one process."""
    moments: list[float] = []
    train_reference(
        replace(plan, steps=steps),
        open_corpus(data, plan.spec.context),
        threads=THREADS,
        on_step=lambda step, loss: moments.append(time.monotonic()),
    )
    return median_interval(moments)


def _figure(part: str, what: str, value: str, spread: str) -> Figure:
    return figure(
        "large models", what, value, spread, f"python -m tests.bench.gpt2 {part}", MEASURES
    )


if __name__ == "__main__":
    main()

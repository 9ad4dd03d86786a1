"""Compares a swarm's speed with a single process's on the same work, in one run.

The swarm has two stages, one volunteer each, one thread each; the reference trainer has two threads
and no wire. Work: a GPT of 8 layers, width 256, context 256, 16 microbatches of 8 sequences per
step. Imports torch.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import read_corpus
from client.cli.founding.options import ModelChoices, RunChoices
from client.cli.reach.home import free_port
from client.cli.terminal.output import say
from client.errors import ExitCode, UserError
from client.lab.founding import found_lab
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.lab.reference import TrainingPlan, train_reference
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from model_zoo.specs.precision import precision_on
from protocol.address import Address
from protocol.invite import SwarmFile
from protocol.manifest import Manifest

HOST = "127.0.0.1"
STEPS = 6
"""Steps of the swarm; the first one warms up."""
REFERENCE_STEPS = 4
"""Steps of the single process, before the swarm and again after it."""
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
MODEL = ModelChoices(layers=8, width=256, heads=8, context=256)
THREADS = 2
NAMES = ("volunteer-1", "volunteer-2")
JOIN_FLAGS = ("--listen-host", HOST, "--threads", "1")
START_TIMEOUT_S = 60.0
TIMEOUT_S = 600.0
POLL_S = 0.25


def measure_efficiency() -> tuple[float, float]:
    """Train the same steps in a swarm and in one process; return the tokens/s of both.

    Raises:
        UserError: the swarm did not do its steps in time.
    """
    with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="volunteer-") as folder:
        homes = Path(folder)
        swarm = found(homes)
        say(f"efficiency: one process with {THREADS} threads")
        before_s = _time_reference(swarm.manifest)
        say("efficiency: a swarm of two volunteers with one thread each")
        swarm_s = _time_swarm(swarm, homes)
        say("efficiency: one process again; its better time counts")
        reference_s = min(before_s, _time_reference(swarm.manifest))
    tokens = swarm.manifest.microbatches_per_step * swarm.manifest.tokens_per_microbatch
    return tokens / swarm_s, tokens / reference_s


def found(homes: Path, run: RunChoices = RUN, model: ModelChoices = MODEL) -> SwarmFile:
    """Found the swarm whose file and first home lie in ``homes``."""
    founder = ensure_identity(make_private(home_folders(homes / NAMES[0]).data))
    manifest = found_lab(homes, founder.peer, run, model).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "bench.swarm", swarm)
    return swarm


def training_plan(manifest: Manifest) -> TrainingPlan:
    """Return the reference trainer's plan for a manifest."""
    return TrainingPlan(
        spec=manifest.model,
        layers_per_stage=manifest.layers_per_stage,
        optimizer=manifest.optimizer,
        seed=manifest.seed,
        steps=manifest.steps,
        microbatches_per_step=manifest.microbatches_per_step,
        sequences_per_microbatch=manifest.sequences_per_microbatch,
        precision=precision_on(manifest.compute, fast_in_bf16=False),
        local_rounds=manifest.local_rounds,
    )


def _time_reference(manifest: Manifest) -> float:
    """Return the median seconds of a step in one process."""
    moments: list[float] = []
    train_reference(
        replace(training_plan(manifest), steps=REFERENCE_STEPS),
        read_corpus("stdlib"),
        threads=THREADS,
        on_step=lambda step, loss: moments.append(time.monotonic()),
    )
    return median_interval(moments)


def _time_swarm(swarm: SwarmFile, homes: Path) -> float:
    """Return the median seconds between two steps of the swarm."""
    return median_interval(swarm_moments(swarm, homes))


def swarm_moments(swarm: SwarmFile, homes: Path) -> list[float]:
    """Run the swarm founded in ``homes``; return the times of its commits, Unix seconds.

    Raises:
        UserError: it did not do its steps in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    with LocalSwarm(homes / "bench.swarm", homes, homes / "logs") as processes:
        first = processes.start(NAMES[0], JOIN_FLAGS)
        first.wait_until_it_answers(START_TIMEOUT_S)
        processes.start(NAMES[1], JOIN_FLAGS)
        committed: dict[int, float] = {}
        while len(committed) < swarm.manifest.steps:
            if time.monotonic() > deadline or not all(m.alive for m in processes.members):
                problem = f"the swarm did {len(committed)} of {swarm.manifest.steps} steps"
                tails = "\n".join(member.log_tail() for member in processes.members)
                raise UserError(problem, tails, ExitCode.TEMPORARY)
            for event in first.new_events():
                step = event.data.get("step")
                if event.kind == "StepCommitted" and isinstance(step, int):
                    committed.setdefault(step, event.time)
            time.sleep(POLL_S)
    return [committed[step] for step in sorted(committed)]


def median_interval(moments: Sequence[float]) -> float:
    """Return the median time between consecutive moments; the first interval warms up."""
    intervals = [later - earlier for earlier, later in itertools.pairwise(moments)]
    return statistics.median(intervals[1:] or intervals)

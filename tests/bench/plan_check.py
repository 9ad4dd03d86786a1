"""The efficiency model against real swarms on this machine: predicted and measured tokens/s.

    python -m tests.bench.plan_check [--shapes 2x1,2x2] [--seconds 60] [--microbatches 32]
                                      [--up 300kB/s] [--json]

For each shape, stages x replicas: a swarm of volunteers with one thread each trains a small GPT
(4 layers of width 128, context 128, 4 sequences per microbatch). Before and after it, as many
processes as there are volunteers time the stages at the same moment, since they share the cores;
that, the measured loopback and the manifest go into ``client.plan``. The volunteers' own node
processes and whatever else runs here are not in the model, except as far as the timing feels them.
With ``--up`` every volunteer limits its upload, so that links and averaging count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from client.cli.commands.create import sign, write_swarm_file
from client.cli.founding.manifest import found_swarm
from client.cli.founding.options import ModelChoices, OptimizerChoices, RunChoices
from client.cli.founding.pricing import stage_seconds
from client.cli.planning.work import ModelWorks
from client.cli.reach.home import free_port
from client.lab.bench.loopback import measure_loopback
from client.lab.local_swarm import LocalSwarm, terminate_as_interrupt
from client.plan.machines import Machine, StageWork
from client.plan.model import Prediction, Run, predict
from client.quantities import parse_rate
from client.store.identity import ensure_identity
from client.store.paths import home_folders, make_private
from model_zoo.specs.slices import slices
from protocol.address import Address
from protocol.manifest import WIRE_BYTES_PER_ELEMENT, Manifest

HOST = "127.0.0.1"
FLAGS = ("--listen-host", HOST, "--threads", "1")
SEQUENCES = 4
MODEL = ModelChoices(layers=4, width=128, heads=4, context=128)
START_S = 150.0
PROBE_ROUNDS = 3
POLL_S = 0.25
LEFT_OUT = 2
"""Steps after everybody is there that do not count: the first one may have begun with fewer."""


@dataclass(frozen=True)
class Result:
    """One shape. Speeds in tokens per second."""

    shape: str
    cores: int
    load: float
    """Mean load of the machine over the minute before the end."""
    steps: int
    measured: float
    """From the median step."""
    slowest: float
    fastest: float
    predicted: float
    predicted_before: float
    """From the timing before the run alone, and after it."""
    predicted_after: float
    ratio: float
    """Measured over predicted."""
    limit: str
    step_s: float
    terms: dict[str, float]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="2x1,2x2")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--up", help="upload limit of every volunteer, such as 300kB/s")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for shape in arguments.shapes.split(","):
        stages, replicas = (int(part) for part in shape.split("x"))
        with terminate_as_interrupt(), tempfile.TemporaryDirectory(prefix="vol") as folder:
            result = check(
                Path(folder),
                *(stages, replicas, arguments.microbatches, arguments.seconds, arguments.up),
            )
        print(json.dumps(asdict(result)) if arguments.json else words(result), flush=True)


def check(
    homes: Path, stages: int, replicas: int, microbatches: int, seconds: float, up: str | None
) -> Result:
    """Predict and measure one shape."""
    manifest = found(homes, stages, replicas, microbatches)
    before = expected(manifest, replicas, up)
    flags = (*FLAGS, "--upload-limit", up) if up else FLAGS
    intervals = measured_steps(manifest, homes, replicas, seconds, flags)
    after = expected(manifest, replicas, up)
    tokens = manifest.microbatches_per_step * manifest.tokens_per_microbatch
    # The mean of the times, as the machine's load changes on the way.
    predicted = tokens / statistics.mean((before.step_s, after.step_s))
    speed = tokens / statistics.median(intervals)
    names = ("compute_s", "link_s", "latency_s", "averaging_s", "memory_s")
    return Result(
        shape=f"{stages}x{replicas}" + (f" at {up}" if up else ""),
        cores=os.cpu_count() or 0,
        load=round(os.getloadavg()[0], 1),
        steps=len(intervals),
        measured=round(speed, 1),
        slowest=round(tokens / max(intervals), 1),
        fastest=round(tokens / min(intervals), 1),
        predicted=round(predicted, 1),
        predicted_before=round(before.tokens_per_s, 1),
        predicted_after=round(after.tokens_per_s, 1),
        ratio=round(speed / predicted, 3),
        limit=before.limit,
        step_s=round(statistics.median(intervals), 3),
        terms={name: round(getattr(before, name), 4) for name in names},
    )


def words(result: Result) -> str:
    """Return a result in two lines."""
    terms = ", ".join(f"{name} {value:g}" for name, value in result.terms.items() if value)
    return (
        f"{result.shape}: measured {result.measured:g} tokens/s ({result.slowest:g} to "
        f"{result.fastest:g}, {result.steps} steps), predicted {result.predicted:g} "
        f"({result.predicted_before:g} before, {result.predicted_after:g} after): "
        f"{result.ratio:.2f} x; load {result.load:g} on {result.cores} cores\n"
        f"     limited by {result.limit}; {terms}"
    )


def found(homes: Path, stages: int, replicas: int, microbatches: int) -> Manifest:
    """Found the swarm."""
    founder = ensure_identity(make_private(home_folders(homes / "v0").data))
    run = RunChoices(
        name="plan",
        stages=stages,
        steps=1_000_000,
        sequences=SEQUENCES,
        microbatches=microbatches,
        redundancy=replicas,
        dual_homing=False,  # one stage each, as the model has it
        checkpoint_every=1000,
    )
    manifest = found_swarm(founder.peer, run, MODEL, OptimizerChoices()).manifest
    swarm = sign(manifest, founder, (Address("ip4", HOST, free_port(HOST), founder.peer),))
    write_swarm_file(homes / "x.swarm", swarm)
    return manifest


def expected(manifest: Manifest, replicas: int, up: str | None) -> Prediction:
    """Return what the model expects of the machine as it is now."""
    loopback = measure_loopback()
    seconds = timed_together(manifest, replicas)
    works = ModelWorks.of(manifest, RunChoices(measure=False))
    stages = works(manifest.stage_count) or []
    # A machine of 1 FLOP/s whose stages cost their seconds.
    timed = tuple(costing(work, taken) for work, taken in zip(stages, seconds, strict=True))
    upload = min(loopback.bytes_per_s, parse_rate(up)) if up else loopback.bytes_per_s
    machine = Machine(
        *("volunteer", 1.0, 16e9, upload, loopback.bytes_per_s),
        rtt_s=loopback.round_trip_ms / 1000,
    )
    run = Run(
        stages=timed,
        microbatches=manifest.microbatches_per_step,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=WIRE_BYTES_PER_ELEMENT[manifest.averaging_codec],
    )
    return predict(run, [[machine] * replicas for _ in timed])


def costing(work: StageWork, seconds: float) -> StageWork:
    """Return a stage's work that costs so many seconds at 1 FLOP/s."""
    cost = work.cost
    return replace(
        work,
        cost=type(cost)(
            layers=cost.layers,
            flops=seconds,
            parameters=cost.parameters,
            uplink_bytes=cost.uplink_bytes,
            downlink_bytes=cost.downlink_bytes,
            memory_bytes=cost.memory_bytes,
        ),
    )


def timed_together(
    manifest: Manifest, replicas: int, stages: Sequence[int] | None = None
) -> list[float]:
    """Return the median seconds of each stage, or of those named; all replicas timed at once."""
    chosen = range(manifest.stage_count) if stages is None else stages
    jobs = [stage for stage in chosen for _ in range(replicas)]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(len(jobs), context) as pool:
        start = manager.Barrier(len(jobs))
        futures = [pool.submit(timed, manifest, stage, start) for stage in jobs]
        found: dict[int, list[float]] = {}
        for stage, future in zip(jobs, futures, strict=True):
            found.setdefault(stage, []).append(future.result(timeout=START_S))
    return [statistics.median(found[stage]) for stage in sorted(found)]


def timed(manifest: Manifest, stage: int, start: object) -> float:
    """Return the median seconds of one stage; begins when all others do."""
    spec = manifest.model
    part = slices(manifest.layers_per_stage)[stage]
    stage_seconds(spec, part, manifest.sequences_per_microbatch)  # warms up
    start.wait(START_S)  # type: ignore[attr-defined]
    rounds = [
        stage_seconds(spec, part, manifest.sequences_per_microbatch) for _ in range(PROBE_ROUNDS)
    ]
    return statistics.mean(rounds)


def measured_steps(
    manifest: Manifest, homes: Path, replicas: int, seconds: float, flags: Sequence[str]
) -> list[float]:
    """Return the seconds between steps of the real swarm once everybody serves."""
    with LocalSwarm(homes / "x.swarm", homes, homes / "logs") as swarm:
        first = swarm.start("v0", flags)
        first.wait_until_it_answers(START_S)
        for number in range(1, manifest.stage_count * replicas):
            swarm.start(f"v{number}", flags)
        wait_until_served(swarm, manifest.stage_count, replicas)
        ready, moments = time.time(), dict[int, float]()
        while time.time() < ready + seconds or len(moments) < LEFT_OUT + 4:
            if not all(member.alive for member in swarm.members):
                raise SystemExit("a volunteer ended:\n" + first.log_tail())
            if time.time() > ready + seconds + START_S:
                raise SystemExit(f"{len(moments)} steps in {seconds + START_S:.0f} s")
            for event in first.new_events():
                step = event.data.get("step")
                late = event.time >= ready
                if event.kind == "StepCommitted" and late and isinstance(step, int):
                    moments.setdefault(step, event.time)
            time.sleep(POLL_S)
    times = [moments[step] for step in sorted(moments)][LEFT_OUT:]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def wait_until_served(swarm: LocalSwarm, stages: int, replicas: int) -> None:
    """Return when the first volunteer sees every stage served by all its replicas."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        now = swarm.members[0].snapshot()
        if now is not None and len(now.stages) == stages and now.step > 0:
            counts = [len(stage.replicas) for stage in now.stages]
            if min(counts) >= replicas:
                return
        time.sleep(POLL_S)
    tails = "\n".join(f"{member.name}:\n{member.log_tail()}" for member in swarm.members)
    raise SystemExit(f"the volunteers did not find their stages\n{tails}")


if __name__ == "__main__":
    main()

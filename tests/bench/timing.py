"""Stages timed at the same moment on this machine, and what the model expects of them."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from client.cli.founding.options import RunChoices
from client.cli.founding.pricing import stage_seconds
from client.cli.planning.work import ModelWorks
from client.lab.bench.loopback import measure_loopback
from client.lab.local_swarm import LocalSwarm
from client.plan.machines import Machine, StageWork
from client.plan.model import Prediction, Run, predict
from model_zoo.specs.codec import CODECS
from model_zoo.specs.slices import slices
from protocol.manifest import Manifest

START_S = 150.0
PROBE_ROUNDS = 3
POLL_S = 0.25


def expected(manifest: Manifest) -> Prediction:
    """Return what the model expects of the machine as it is now."""
    loopback = measure_loopback()
    seconds = timed_together(manifest)
    works = ModelWorks.of(manifest, RunChoices(measure=False))
    stages = works(manifest.stage_count) or []
    # A machine of 1 FLOP/s whose stages cost their seconds.
    timed = tuple(costing(work, taken) for work, taken in zip(stages, seconds, strict=True))
    machine = Machine(
        *("volunteer", 1.0, 16e9, loopback.bytes_per_s, loopback.bytes_per_s),
        rtt_s=loopback.round_trip_ms / 1000,
    )
    run = Run(
        stages=timed,
        microbatches=manifest.microbatches_per_step,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=CODECS[manifest.averaging_codec].bytes_per_number,
    )
    return predict(run, [[machine] for _ in timed])


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


def timed_together(manifest: Manifest, stages: Sequence[int] | None = None) -> list[float]:
    """Return the median seconds of each stage, or of those named; all timed at once."""
    jobs = list(range(manifest.stage_count)) if stages is None else list(stages)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(len(jobs), context) as pool:
        start = manager.Barrier(len(jobs))
        futures = [pool.submit(timed, manifest, stage, start) for stage in jobs]
        return [future.result(timeout=START_S) for future in futures]


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

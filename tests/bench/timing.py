"""Stages timed at the same moment on this machine, and what the model expects of them."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from msgspec import structs

from client.lab.bench.loopback import measure_loopback
from client.plan.model import Load, Machine, Prediction, Run, predict
from model_zoo.specs.codec import CODECS
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice, slices
from model_zoo.stages import build_stage, summed_loss
from model_zoo.threads import limited_threads
from protocol.manifest import Manifest, StageCost

STAGE_REPEATS = 5
START_S = 150.0
PROBE_ROUNDS = 3


def expected(manifest: Manifest) -> Prediction:
    """Return what the model expects of the machine as it is now."""
    loopback = measure_loopback()
    timed = tuple(map(costing, manifest.stages, timed_together(manifest)))
    machine = Machine(
        *(1.0, 16e9, loopback.bytes_per_s, loopback.bytes_per_s),
        rtt_s=loopback.round_trip_ms / 1000,
    )
    run = Run(
        stages=timed,
        microbatches=manifest.microbatches_per_step,
        tokens_per_microbatch=manifest.tokens_per_microbatch,
        averaging_bytes_per_parameter=CODECS[manifest.averaging_codec].bytes_per_number,
    )
    return predict(run, [[machine] for _ in timed])


def costing(cost: StageCost, seconds: float) -> Load:
    """Return a stage that costs so many seconds on a machine of 1 FLOP/s."""
    return Load(structs.replace(cost, flops=seconds))


def timed_together(manifest: Manifest) -> list[float]:
    """Return the median seconds of each stage; all timed at once."""
    jobs = range(manifest.stage_count)
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


def stage_seconds(spec: ModelSpec, part: StageSlice, sequences: int) -> float:
    """Return the seconds of a stage's forward and backward on one thread."""
    stage = build_stage(spec, part, seed=0)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((sequences, spec.context, spec.width), generator=generator)
    tokens = torch.zeros((sequences, spec.context), dtype=torch.int64)
    source = tokens if part.embeds else hidden.clone().requires_grad_()

    def run() -> None:
        result = stage(source)
        if part.has_head:
            torch.autograd.backward(summed_loss(result, tokens))
        else:
            torch.autograd.backward(result, hidden)

    with limited_threads(1):
        return least_seconds(run, STAGE_REPEATS)


def least_seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the least seconds of processor time that ``run`` takes, after one to warm up: other
    programs can make a run longer, never shorter."""
    run()
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return min(taken)

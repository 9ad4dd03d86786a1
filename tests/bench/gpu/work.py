"""What is measured: stages with their microbatches and steps; seconds and memory of a device."""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from client.cli.founding.presets import PRESETS
from client.compute.payload import seal
from client.compute.requests import OpenStage
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.precision import Precision
from model_zoo.specs.slices import StageSlice, slices
from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask, LossTask
from tests.bench.gpu.running import Found
from tests.support.codecs import encode
from tests.support.compute_stages import LocalWorker, open_request

MAKERS_FLOP_PER_S = {"H100": 989e12, "H200": 989e12}
"""Dense products in bf16, by the maker."""
WARM = 2
CALL_S = 900.0
"""A call of a large stage takes minutes."""


@dataclass(frozen=True)
class Work:
    """A stage of a model, and the size of a microbatch."""

    spec: ModelSpec
    layers_per_stage: tuple[int, ...]
    stage: int
    sequences: int
    microbatches: int

    @property
    def part(self) -> StageSlice:
        """The stage's slice."""
        return slices(self.layers_per_stage)[self.stage]

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.sequences * self.spec.context

    def opening(self, device: str, **changes: Any) -> OpenStage:
        """Return the request that opens the stage."""
        return open_request(
            self.stage,
            self.layers_per_stage,
            model=self.spec,
            seed=1,
            optimizer=PRESETS["gpt2-124m"].optimizer,
            precision=precision(device),
            boundary="s8",
            averaging="s8",
            sequences=self.sequences,
            microbatches=self.microbatches,
            graphs_kept=2,
            device=device,
            threads=1 if device == "cpu" else 8,
            **changes,
        )

    def sample(self, number: int) -> bytes:
        """Return the tokens of a microbatch as they are sent."""
        drawn = np.random.default_rng(number)
        kind = "<u2" if self.spec.vocab <= 1 << 16 else "<u4"
        shape = self.sequences, self.spec.context + 1
        return drawn.integers(self.spec.vocab, size=shape).astype(kind).tobytes()


def work(model: str, *, small: bool) -> Work:
    """Return what is measured of a model."""
    if model == "llama":
        spec, sequences = PRESETS["llama-3.2-1b"].model, 4
        if small:
            spec = msgspec.structs.replace(
                spec, layers=4, width=64, heads=2, kv_heads=1, ffn_width=128, context=64, vocab=256
            )
        return Work(spec, (1, spec.layers - 2, 1), 1, sequences, 4 if small else 8)
    spec = PRESETS["gpt2-124m"].model
    if small:
        spec = msgspec.structs.replace(
            spec, layers=2, width=64, heads=2, kv_heads=2, ffn_width=128, context=64, vocab=256
        )
    return Work(spec, (spec.layers,), 0, 16, 4 if small else 8)


def sync(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device: str, run: Callable[[], object], repeats: int = 20, *, warm: int = WARM) -> float:
    """Return the median seconds of a run, the device's work included."""
    taken = []
    for _ in range(repeats + warm):
        sync(device)
        began = time.perf_counter()
        run()
        sync(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[warm:])


def precision(device: str) -> Precision:
    """Return in which numbers is computed."""
    return "fp32" if device == "cpu" else "bf16"


def mfu(flop_per_s: float, asked: argparse.Namespace) -> Found:
    """Return the share of the products that `rates` has measured, or else of the maker's."""
    if asked.peak:
        return {"mfu": flop_per_s / asked.peak, "of": f"{asked.peak / 1e12:.4g} TFLOP/s, measured"}
    name = torch.cuda.get_device_name() if asked.device.startswith("cuda") else ""
    for card, peak in MAKERS_FLOP_PER_S.items():
        if card in name:
            return {"mfu": flop_per_s / peak, "of": f"{peak / 1e12:.4g} TFLOP/s, the maker's"}
    return {"tflops": flop_per_s / 1e12}


def payloads(one: Work, device: str) -> tuple[bytes, bytes]:
    """Return a boundary (B, T, C) as a stage in between gets it, and a gradient of its output."""
    there = torch.randn(one.sequences, one.spec.context, one.spec.width, device=device)
    hidden = encode(there, "s8", direction="forward")
    gradient = encode(there / 1000, "s8", direction="backward")
    seal(hidden)
    seal(gradient)
    return bytes(hidden), bytes(gradient)


def worker_step(worker: LocalWorker, one: Work, device: str) -> Callable[[], None]:
    """Return a step of the stage's only replica, which is of the whole model or in between."""
    samples = [one.sample(number) for number in range(one.microbatches)]
    whole = one.part.embeds and one.part.has_head
    hidden, gradient = payloads(one, device)

    def step() -> None:
        version = worker.replica.version
        for number, tokens in enumerate(samples):
            named: Any = {"step": version, "microbatch": version * len(samples) + number}
            if whole:
                worker.call(LossTask(**named), tokens)
            else:
                worker.call(ForwardTask(**named), hidden)
                worker.call(BackwardTask(**named), gradient, hidden)
        worker.call(ApplyTask(step=version))

    return step

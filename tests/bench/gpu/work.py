"""What is measured: stages with their microbatches; and seconds and memory of a device."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from client.cli.founding.presets import PRESETS
from client.compute.requests import OpenStage
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice, slices

H100_FLOPS = 989e12
"""Dense bf16 products a second by its maker; MFU is by this and by what `rates` measures."""
WARM = 2
CALL_S = 900.0
"""A call of a large stage takes minutes."""
Found = dict[str, Any]


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
        low = device != "cpu"
        request = OpenStage(
            swarm="ab" * 32,
            model=self.spec,
            layers_per_stage=list(self.layers_per_stage),
            stage=self.stage,
            seed=1,
            optimizer=PRESETS["gpt2-124m"].optimizer,
            precision="bf16" if low else "fp32",
            boundary_codec="s8",
            averaging_codec="s8",
            sequences=self.sequences,
            tokens=self.spec.context,
            microbatches=self.microbatches,
            graphs_kept=2,
            device=device,
            threads=8 if low else 1,
        )
        return msgspec.structs.replace(request, **changes)

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


def timed(device: str, run: Callable[[], object], repeats: int = 20) -> float:
    """Return the median seconds of a run, the device's work included."""
    taken = []
    for _ in range(repeats + WARM):
        sync(device)
        began = time.perf_counter()
        run()
        sync(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM:])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tell(found: Found) -> None:
    """Print what is known already: a part may take too long."""
    print(json.dumps(found), flush=True)


def peak_gb(device: str) -> float:
    """Return the most that the device's allocator has given out."""
    return torch.cuda.max_memory_allocated() / 1e9 if device.startswith("cuda") else 0.0


def allocated(*, anew: bool = False) -> int:
    """Return what the device's allocator has given out; ``anew``: the most counts from here."""
    if not torch.cuda.is_available():
        return 0
    if anew:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()

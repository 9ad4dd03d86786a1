"""Adapters beside frozen weights: the bytes that are averaged, and the losses against `peft`.

`python -m tests.bench.adapters TEXT [STEPS]` trains adapters of rank 16 of `q_proj` and `v_proj` in
a Llama-shaped model of 111M random parameters: by two replicas of one stage, averaged in fp32 and
in s8, and by `peft` in one process from the same numbers on the same samples. Needs `peft`. It
prints the largest difference of the losses (at most 1e-3 is asked) and what a replica sends in a
step against tuning all parameters (at most 2 %).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from msgspec import UNSET
from msgspec.structs import replace

from client.cli.founding.presets import PRESETS
from client.compute.payload import CodecName
from client.compute.requests import (
    Apply,
    Contribute,
    ForwardBackward,
    LoadStart,
    OpenStage,
    Reduce,
)
from client.compute.starting import Written, write_start
from model_zoo.data import Corpus
from model_zoo.export import export_hf
from model_zoo.huggingface.imports import open_folder
from model_zoo.reference import TrainingPlan
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import whole_slice
from model_zoo.whole import build_whole
from tests.support.compute_stages import LocalWorker
from tests.unit.model_zoo.test_zoo_lora import peft_losses

CONTEXT, SEQUENCES, REPLICAS = 64, 3, 2
TOKENS = CONTEXT * SEQUENCES * REPLICAS
LORA = Lora(16, 32.0, ("q_proj", "v_proj"), "fp32")
OPTIMIZER = OptimizerSpec(1e-3, 1e-4, warmup_steps=2, decay_steps=30, beta2=0.95, clip=0.0)
SEED = 11


class Pair:
    """Two replicas of a stage that holds the whole model."""

    def __init__(self, model: ModelSpec, codec: CodecName, start: Written, text: str) -> None:
        self._workers = [LocalWorker() for _ in range(REPLICAS)]
        for worker in self._workers:
            request = OpenStage(
                swarm="ab" * 32,
                model=model,
                layers_per_stage=[model.layers],
                stage=0,
                seed=SEED,
                imported=True,
                optimizer=OPTIMIZER,
                boundary_codec="fp32",
                averaging_codec=codec,
                sequences=SEQUENCES,
                tokens=CONTEXT,
                threads=torch.get_num_threads(),
                corpus=text,
            )
            opened, _ = worker.call(request)
            worker.call(LoadStart(path=str(start.path), digest=start.digest))
        self._bounds = [0, opened.parameters // 2, opened.parameters]

    def step(self, step: int) -> tuple[float, int]:
        """Return the mean loss of a step, and the bytes that a replica has sent in it."""
        workers, bounds, total = self._workers, self._bounds, 0.0
        for place, worker in enumerate(workers):
            request = ForwardBackward(step=step, microbatch=REPLICAS * step + place, tokens=b"")
            total += worker.call(request)[0].loss_sum
        contribute = Contribute(step=step, attempt=0, bounds=bounds, tokens=TOKENS)
        sent = [worker.call(contribute)[1] for worker in workers]
        sums, norms = list[bytes](), list[float]()
        for own, worker in enumerate(workers):
            reduce = Reduce(step=step, attempt=0, segment=own, microbatches=[1, 1], own=own)
            reduced, (encoded,) = worker.call(reduce, sent[1 - own][own])
            sums.append(encoded)
            norms.append(reduced.squared_norm)
        apply = Apply(step=step, attempt=0, bounds=bounds, squared_norms=norms, tokens=TOKENS)
        hashes = {worker.call(apply, *sums)[0].hash for worker in workers}
        assert len(hashes) == 1, "I2"
        return total / TOKENS, len(sent[0][1]) + len(sums[0])


def main(text: str, steps: int) -> None:
    """Train, and print what is asked."""
    shape = PRESETS["smollm2-135m"].model
    base = replace(shape, vocab=4096, context=CONTEXT, max_context=UNSET)
    plan = TrainingPlan(
        replace(base, lora=LORA), (base.layers,), OPTIMIZER, SEED, steps, REPLICAS, SEQUENCES
    )
    with tempfile.TemporaryDirectory() as name:
        folder = export_hf(base, build_whole(base, seed=5).state_dict(), Path(name) / "base")
        theirs = peft_losses(plan, Corpus.from_bytes_file(Path(text)), folder)
        with open_folder(folder, CONTEXT) as imported:
            spec = imported.spec
            start = write_start(imported, whole_slice(spec), lambda digest: Path(name) / digest)
        print(f"{base.parameter_count:,} parameters; peft: {theirs[0]:.4f} to {theirs[-1]:.4f}")
        codecs: tuple[CodecName, ...] = ("fp32", "s8")
        for codec in codecs:
            pair = Pair(replace(spec, lora=LORA), codec, start, text)
            losses, sent = zip(*(pair.step(step) for step in range(steps)), strict=True)
            apart = max(abs(a - b) for a, b in zip(losses, theirs, strict=True))
            print(f"averaged in {codec}: losses differ by {apart:.1e}, {sent[0]:,} bytes a step")
        _, much = Pair(spec, "s8", start, text).step(0)
        print(f"all parameters in s8: {much:,} bytes a step; adapters: {sent[0] / much:.2%} of it")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12)

"""Held-out loss and bytes of boundaries: full width in each codec, and narrow ones.

Run: python -m tests.bench.boundaries [--steps 600] [--seeds 3] [--shape 4x128] [--only S8,d/4]
     [--lr 0.003] [--json]

A model of one layer a stage learns Python's own source, byte by byte, in this process: the stages,
the optimizer (Muon) and the bytes that pass are the product's. All see the same microbatches in the
same order. The bytes of a token are those of one boundary in one direction, the header left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from client.compute.payload import HEADER
from client.compute.replica import squared_norm, step_scale
from client.compute.wire import Wire
from client.lab.reference import evaluate, merge_states
from model_zoo.data import BUILT_IN, inputs_and_targets
from model_zoo.datasets.corpus import Corpus
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.optimizer import FlatOptimizer, flat_optimizer
from model_zoo.specs.codec import BoundaryCodec
from model_zoo.specs.matrices import hidden_matrices
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip
from model_zoo.specs.slices import narrow_layers, slices
from model_zoo.stages import Stage, build_stage, summed_loss
from model_zoo.threads import limited_threads
from model_zoo.whole import load_whole
from tests.support.compute_stages import small_run
from tests.support.texts import corpus_of

CONTEXT, SEQUENCES = 64, 16
HELD_OUT_BATCHES = 40
ALL = ("S8", "S4", "d/4", "d/8")


@dataclass(frozen=True)
class Cell:
    """What one kind of boundary has come to, over the seeds."""

    kind: str
    bytes_per_token: float
    """Of a boundary, in one direction."""
    losses: tuple[float, ...]
    """Held-out, nats per byte, of each seed."""


def model_of(layers: int, width: int, kind: str) -> tuple[ModelSpec, BoundaryCodec]:
    """Return the model with boundaries of a kind, and their codec."""
    narrow = None
    if kind.startswith("d/"):
        narrow = Narrow(width // int(kind[2:]), narrow_layers([1] * layers))
    spec = ModelSpec("llama", layers, width, 4, 4, width * 11 // 4, CONTEXT, narrow=narrow)
    return spec, "s8" if kind == "S8" else "s4"


@dataclass
class Trained:
    """A stage and what makes its steps."""

    stage: Stage
    flat: FlatParameters
    optimizer: FlatOptimizer


class Pipeline:
    """Stages of one layer each, trained one microbatch a step."""

    def __init__(self, spec: ModelSpec, codec: BoundaryCodec, rule: OptimizerSpec, seed: int):
        self.spec, self.rule, self.seed = spec, rule, seed
        run = small_run([spec.layers], model=spec, boundary=codec, sequences=SEQUENCES)
        self.wire = Wire(run, "", 0, torch.device("cpu"))
        self.sent = 0
        self._stages = []
        for part in slices([1] * spec.layers):
            stage = build_stage(spec, part, seed)
            flat = FlatParameters(stage)
            made = flat_optimizer(rule)
            step = made(flat.values, flat.decay_size, rule, hidden_matrices(spec, part))
            step.alone = True
            self._stages.append(Trained(stage, flat, step))

    def step(self, corpus: Corpus, number: int) -> float:
        """Train on a microbatch; return its loss."""
        samples = corpus.sample(number, SEQUENCES, CONTEXT, self.seed)
        inputs, targets = map(torch.from_numpy, inputs_and_targets(samples))
        x, graphs = inputs, list[tuple[Tensor, Tensor]]()
        for one in self._stages:
            one.flat.zero_gradients()
            if graphs:
                payload = self.wire.boundary_out(graphs[-1][1].detach(), "forward").now()
                self.sent = len(payload) - HEADER.size
                x = self.wire.boundary_in(payload, "forward", 0)[0].requires_grad_()
            graphs.append((x, one.stage(x, tokens=inputs)))
        loss = summed_loss(graphs[-1][1], targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for place in range(len(graphs) - 1, 0, -1):
            gradient, output = graphs[place][0].grad, graphs[place - 1][1]
            assert gradient is not None
            payload = self.wire.boundary_out(gradient, "backward", of=(number, place)).now()
            output.backward(self.wire.boundary_in(payload, "backward", 0)[0])  # type: ignore[no-untyped-call]
        clip, rate = stage_clip(self.rule, len(graphs)), learning_rate(self.rule, number)
        for one in self._stages:
            gradient = one.flat.gradients
            scale = step_scale(squared_norm(gradient), targets.numel(), clip)
            one.optimizer.step(gradient, rate, scale)
        return loss.item() / targets.numel()

    def held_out(self, corpus: Corpus) -> float:
        """Return the held-out loss."""
        state = merge_states(one.flat.state() for one in self._stages)
        sizes = {"batches": HELD_OUT_BATCHES, "sequences": SEQUENCES, "context": CONTEXT}
        return evaluate(load_whole(self.spec, state), corpus, **sizes)


def measure(kind: str, shape: tuple[int, int], steps: int, seeds: Sequence[int], lr: float) -> Cell:
    """Train with boundaries of a kind, with each seed."""
    spec, codec = model_of(*shape, kind)
    rule = OptimizerSpec(
        name="muon",
        lr=lr,
        min_lr=lr / 10,
        beta1=0.95,
        weight_decay=0.03,
        warmup_steps=steps // 20,
        decay_steps=steps,
    )
    corpus, losses, sent = corpus_of(BUILT_IN), [], 0
    for seed in seeds:
        run, begun = Pipeline(spec, codec, rule, seed), time.process_time()
        seen = [run.step(corpus, number) for number in range(steps)]
        losses.append(round(run.held_out(corpus), 4))
        sent = run.sent
        lately = statistics.mean(seen[-steps // 10 :])
        taken = f"trained to {lately:.4f} in {time.process_time() - begun:.0f} s"
        print(f"{kind}, seed {seed}: {losses[-1]:.4f} ({taken})", file=sys.stderr, flush=True)
    return Cell(kind, sent / (SEQUENCES * CONTEXT), tuple(losses))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shape", default="4x128", help="layers x width")
    parser.add_argument("--only", default=",".join(ALL))
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    layers, width = map(int, asked.shape.split("x"))
    kinds, seeds = asked.only.split(","), range(1, 1 + asked.seeds)
    with limited_threads(1):
        cells = [measure(kind, (layers, width), asked.steps, seeds, asked.lr) for kind in kinds]
    if asked.json:
        print(json.dumps([asdict(cell) for cell in cells]))
        return
    for cell in cells:
        mean = statistics.mean(cell.losses)
        print(f"{cell.kind:4} {cell.bytes_per_token:7.2f} bytes a token {mean:.4f} {cell.losses}")


if __name__ == "__main__":
    main()

"""Held-out loss and bytes of boundaries: full width in each codec, and narrow ones.

Run: python -m tests.bench.boundaries [--steps 600] [--seeds 3] [--shape 4x128] [--only S8,d/4]
     [--lr 0.003] [--json]

A model of one layer a stage learns Python's own source, byte by byte, by the product's executors in
this process (Muon). All see the same microbatches in the same order. The bytes of a token are those
of one boundary in one direction, the header left out.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

from client.compute.payload import SEAL_BYTES
from client.lab.reference import evaluate, merge_states
from model_zoo.data import BUILT_IN
from model_zoo.specs.codec import BoundaryCodec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.narrow import Narrow
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import narrow_layers
from model_zoo.specs.tokens import token_dtype
from model_zoo.stages import load_whole
from model_zoo.threads import limited_threads
from protocol.pipeline.effects import ApplyTask
from tests.support.compute_stages import Chain
from tests.support.texts import corpus_of

TOKEN = token_dtype(256)
CONTEXT, SEQUENCES = 64, 16
HELD_OUT_BATCHES = 40
ALL = ("FP32", "S8", "S4", "d/4", "d/8")


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
    return spec, "s4" if narrow else cast("BoundaryCodec", kind.lower())


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
    run = {"model": spec, "boundary": codec, "optimizer": rule, "sequences": SEQUENCES}
    for seed in seeds:
        begun, seen = time.process_time(), []
        how = {**run, "microbatches": 1, "threads": 1, "seed": seed}
        chain = Chain([1] * spec.layers, beside=spec.narrow is not None, **how)
        for number in range(steps):
            samples = corpus.sample(number, SEQUENCES, CONTEXT, seed)
            passed = chain.run(number, step=number, tokens=samples.astype(TOKEN).tobytes())
            for worker in chain.workers:
                worker.call(ApplyTask(step=number))
            seen.append(passed.loss / (SEQUENCES * CONTEXT))
            sent = len(passed.inputs[1][0]) - SEAL_BYTES
        flats = [worker.replica.flat for worker in chain.workers]
        state = merge_states(flat.views(flat.values) for flat in flats)
        sizes = {"batches": HELD_OUT_BATCHES, "sequences": SEQUENCES, "context": CONTEXT}
        losses.append(round(evaluate(load_whole(spec, state), corpus, **sizes), 4))
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

"""The memory of each rank of a cut stage beside its prediction.

    python -m tests.bench.cut_memory [--shapes parameters,graphs,head,experts] [--inside fsdp,tp]
                                     [--ranks 2,4] [--steps 2] [--record]

A group of processes on the CPU opens a stage that is cut over them and runs steps: microbatches
forward, as many graphs as are kept, and back, a round with S8, the update, and a checkpoint. The
shapes are a stage whose parameters take most of the memory, one whose graphs do, a last stage with
a large vocabulary, and a stage of mixtures of experts. Memory is the peak of what is resident in
each rank from the opening on, less what the process had before, when it had run a small stage. Its
rings, which are of one size whatever the stage is, do not count. The prediction is what
`client.compute.memory` says of a rank; the first one has what rounds and versions need beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import trio
from msgspec import UNSET
from msgspec.structs import replace

from client.compute.allowance import needed_bytes
from client.compute.group import open_group
from client.compute.payload import Buffer
from client.compute.process import RING_BYTES, RequestFailed, Worker
from client.compute.requests import (
    Apply,
    Backward,
    Contribute,
    DecodeSum,
    Forward,
    ForwardBackward,
    Inside,
    OpenStage,
    Reduce,
    Save,
)
from client.compute.wire import Wire
from model_zoo.specs.architecture import Experts
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.specs.slices import stage_parameters
from tests.bench import figures as page

COMMAND = "python -m tests.bench.cut_memory"
MEASURES = (
    "client/compute/memory.py",
    "client/compute/sharding.py",
    "client/compute/full_shards.py",
    "client/compute/tensor_parallel.py",
)
SEGMENTS, HEADS, ACTIVE = 16, 8, 2
PARTS_OF_A_RING = 4
WAYS = tuple(way for way in get_args(Inside) if way != "replicas")


@dataclass(frozen=True)
class Shape:
    """A stage of a GPT of two stages, or of a Llama with experts, and its work."""

    stage: int
    layers: int
    width: int
    vocab: int
    sequences: int
    tokens: int
    graphs: int
    experts: int = 0

    def opening(self, inside: Inside) -> OpenStage:
        """Return the request that opens it."""
        model = ModelSpec(
            architecture="llama" if self.experts else "gpt",
            layers=self.layers + 1,
            width=self.width,
            heads=HEADS,
            kv_heads=HEADS,
            ffn_width=4 * self.width,
            vocab=self.vocab,
            context=self.tokens,
            experts=Experts(self.experts, ACTIVE, balance=0.01) if self.experts else UNSET,
        )
        return OpenStage(
            swarm="ab" * 32,
            model=model,
            layers_per_stage=[1, self.layers] if self.stage else [self.layers, 1],
            stage=self.stage,
            seed=0,
            optimizer=OptimizerSpec(),
            boundary_codec="s8",
            averaging_codec="s8",
            sequences=self.sequences,
            tokens=self.tokens,
            graphs_kept=self.graphs,
            threads=1,
            inside=inside,
        )


SMALL = Shape(stage=0, layers=1, width=64, vocab=256, sequences=4, tokens=16, graphs=1)
SHAPES = {
    "parameters": Shape(0, layers=6, width=768, vocab=256, sequences=4, tokens=16, graphs=1),
    "graphs": Shape(0, layers=4, width=256, vocab=256, sequences=8, tokens=256, graphs=2),
    "experts": Shape(0, 2, width=256, vocab=256, sequences=8, tokens=512, graphs=2, experts=8),
    "head": Shape(1, layers=2, width=512, vocab=16384, sequences=4, tokens=128, graphs=1),
}


@dataclass(frozen=True)
class Found:
    """Bytes of the first rank and of the others, the largest of these, and their predictions."""

    leads: float
    leads_predicted: float
    follows: float
    follows_predicted: float

    @property
    def ratios(self) -> tuple[float, float]:
        """Measured by predicted."""
        return self.leads / self.leads_predicted, self.follows / self.follows_predicted


def tokens_of(shape: Shape, microbatch: int) -> bytes:
    """Return a microbatch's tokens, as on the wire."""
    drawn = np.random.default_rng(microbatch)
    size = shape.sequences, shape.tokens + 1
    return drawn.integers(shape.vocab, size=size, dtype=np.uint16).tobytes()


async def step(worker: Worker, shape: Shape, number: int, parameters: int) -> None:
    """Run a step of a stage's only replica, with the wire."""
    microbatches, given = range(shape.graphs + 1), boundary(shape)
    if shape.stage:
        for m in microbatches:
            learn = ForwardBackward(step=number, microbatch=m, tokens=tokens_of(shape, m))
            await worker.call(learn, [given])
    else:
        for m in microbatches:
            await worker.call(Forward(step=number, microbatch=m), [tokens_of(shape, m)])
        for m in reversed(microbatches):  # the one without a graph beside those that are kept
            back = [given] if m < shape.graphs else [given, tokens_of(shape, m)]
            await worker.call(Backward(step=number, microbatch=m), back)
    aligned = [128 * (parameters // 128 * part // SEGMENTS) for part in range(SEGMENTS)]
    await apply_round(worker, shape, number, [*aligned, parameters])


def boundary(shape: Shape) -> bytes:
    """Return a tensor from the other stage, or its gradient."""
    size = shape.sequences, shape.tokens, shape.width
    wire = Wire(*size, shape.vocab, "s8", "s8", torch.device("cpu"))
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(0))
    return bytes(wire.boundary_out(tensor, "forward" if shape.stage else "backward"))


async def apply_round(worker: Worker, shape: Shape, number: int, bounds: list[int]) -> None:
    """Average with nobody, over the wire's codec, and make the next version."""
    await worker.call(Contribute(step=number, attempt=0, bounds=bounds))
    sums: list[Buffer] = []
    norms: list[float] = []
    for segment in range(SEGMENTS):
        identity: dict[str, Any] = {"step": number, "attempt": 0, "segment": segment}
        reply, sent = await worker.call(Reduce(**identity, microbatches=[1], own=0))
        sums += sent
        norms.append(reply.squared_norm)
        await worker.call(DecodeSum(**identity, squared_norm=norms[-1]), sent)
    tokens = (shape.graphs + 1) * shape.sequences * shape.tokens
    request = Apply(step=number, attempt=0, bounds=bounds, squared_norms=norms, tokens=tokens)
    await worker.call(request, sums)


async def measured(worker: Worker, shape: Shape, inside: Inside, steps: int) -> Found:
    """Open a stage in a group, run steps, and return what its ranks took."""
    ranks, request = len(worker.pids), shape.opening(inside)
    with tempfile.TemporaryDirectory() as folder:
        await run(worker, SMALL, inside, 1, folder)
        await fill_rings(worker)
        before = [resident(pid) for pid in worker.pids]
        for pid in worker.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
        await run(worker, shape, inside, steps, folder)
    after = [resident(pid) for pid in worker.pids]
    sizes = [
        late["VmHWM"] - early["VmRSS"] - (late["RssShmem"] - early["RssShmem"])
        for early, late in zip(before, after, strict=True)
    ]
    cut = replace(request, ranks=ranks)
    predicted = needed_bytes(cut), needed_bytes(replace(cut, follows=True))
    return Found(sizes[0], predicted[0], max(sizes[1:]), predicted[1])


async def fill_rings(worker: Worker) -> None:
    """Have the rings to the ranks used as far as they go, by what no rank accepts."""
    for microbatch in range(2 * PARTS_OF_A_RING):
        with suppress(RequestFailed):
            refused = Forward(step=1, microbatch=microbatch)
            await worker.call(refused, [bytes(RING_BYTES // PARTS_OF_A_RING)])


async def run(worker: Worker, shape: Shape, inside: Inside, steps: int, folder: str) -> None:
    """Open a stage and run steps; a checkpoint is written after the first one."""
    opened, _ = await worker.call(shape.opening(inside))
    for number in range(steps):
        await step(worker, shape, number, opened.parameters)
        if not number:
            await worker.call(Save(version=1, path=f"{folder}/checkpoint", durable=False))


async def measured_alone(name: str, inside: Inside, ranks: int, steps: int) -> Found:
    """As `measured`, in a group of its own: what another stage left would not count."""
    async with open_group([f"cpu:{rank}" for rank in range(ranks)]) as worker:
        return await measured(worker, SHAPES[name], inside, steps)


def resident(pid: int) -> dict[str, int]:
    """Return what the kernel counts of a process, in bytes: now, at most, and of its rings."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    wanted = ("VmRSS:", "VmHWM:", "RssShmem:")
    return {line[0][:-1]: 1024 * int(line[1]) for line in lines if line and line[0] in wanted}


def told(name: str, inside: Inside, ranks: int, found: Found) -> tuple[str, str, str]:
    """Return the row of a shape that was cut in one way."""
    shape, request = SHAPES[name], SHAPES[name].opening(inside)
    parameters = stage_parameters(request.model, request.layers_per_stage, shape.stage)
    what = (
        f"memory of a stage cut over {ranks} ranks on the CPU with `{inside}`, by prediction: "
        f"{name}, {parameters / 1e6:.1f}M parameters, {shape.sequences} x {shape.tokens} tokens, "
        f"{shape.graphs} graphs kept"
    )
    first, other = found.ratios
    value = f"**{first:.2f}** the first rank, **{other:.2f}** the others"
    spread = (
        f"{found.leads / 1e6:.0f} of {found.leads_predicted / 1e6:.0f} MB, "
        f"{found.follows / 1e6:.0f} of {found.follows_predicted / 1e6:.0f} MB; one run"
    )
    return what, value, spread


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--inside", default=",".join(WAYS))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--steps", type=int, default=2)
    page.add_record_flag(parser)
    asked = parser.parse_args()
    rows = []
    for name in asked.shapes.split(","):
        for inside in asked.inside.split(","):
            for ranks in map(int, asked.ranks.split(",")):
                found = trio.run(measured_alone, name, inside, ranks, asked.steps)
                rows.append(told(name, inside, ranks, found))
                print("{}: {} ({})".format(*rows[-1]), flush=True)
    if asked.record:
        page.record([page.figure("large models", *row, COMMAND, MEASURES) for row in rows])


if __name__ == "__main__":
    main()

"""One run of the learning benchmark: the replicas of one stage, as executors of this process.

What would cross a wire between them is encoded and decoded, and nothing is sent.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from client.compute.requests import OpenStage
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.codec import CODECS, AveragingCodec
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec
from model_zoo.specs.tokens import token_dtype
from protocol.pipeline.effects import ApplyTask, ContributeTask, LossTask, PassTask
from tests.bench.machines import commit
from tests.support.compute_rounds import summed
from tests.support.compute_stages import LocalWorker, open_request

CONTEXT = 64
STEP_SEQUENCES = 16
STEP_TOKENS = STEP_SEQUENCES * CONTEXT
HELD_OUT = 512
SHAPES = {
    "S": ModelSpec("gpt", 3, 64, 4, 4, 256, CONTEXT),
    "W": ModelSpec("gpt", 4, 128, 4, 4, 512, CONTEXT),
}
RATES = {"muon": 0.01, "adamw": 0.003}
"""The best of those tried for exact runs of S."""
WARM_UP = 0.08
TOKEN = token_dtype(256)
LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "x-10": lambda sent: -10 * sent,
    "x-1": lambda sent: -sent,
    "zero": torch.zeros_like,
    "random": lambda sent: torch.randn(sent.shape) * sent.square().mean().sqrt(),
}


LOCAL = {
    "replicas": 4,
    "codec": "q2",
    "microbatches": 16,
    "inner_microbatches": 1,
    "rule": "sum",
    "liar": "",
    "drop": 0.0,
}
"""The usual local run."""


class Run(Struct, frozen=True):
    """What fixes the numbers of a run."""

    method: str
    shape: str
    steps: int
    seed: int
    optimizer: str
    lr: float
    replicas: int = 1
    codec: AveragingCodec = "s8"
    microbatches: int = 1
    """Of each replica in a round; together they have one of every replica, 1,024 tokens, a step."""
    inner_microbatches: int = 1
    """Of a replica's, after which it takes an inner step."""
    rule: str = "sum"
    liar: str = ""
    drop: float = 0.0

    @property
    def name(self) -> str:
        """What it is, for people."""
        if self.method == "exact":
            return f"exact {self.optimizer}, lr {self.lr}"
        always = ("replicas", "codec", "microbatches")
        shown = {name: getattr(self, name) for name in LOCAL}
        unusual = [name for name, value in shown.items() if value != LOCAL[name]]
        names = dict.fromkeys((*always, *unusual))
        words = ", ".join(f"{name.replace('_', ' ')} {shown[name]}" for name in names)
        return f"local {self.optimizer}: {words}"

    @property
    def rounds(self) -> int:
        """Versions that it makes."""
        return self.steps // self.microbatches

    @property
    def sent(self) -> float:
        """Bytes of a replica's contributions, a parameter and thousand tokens of the run."""
        return 1000 * CODECS[self.codec].bytes_per_number / (self.microbatches * STEP_TOKENS)


class Result(Struct, frozen=True):
    """A finished run: held-out loss after each quarter, in nats."""

    run: Run
    curve: tuple[float, ...]
    seconds: float
    code: str

    @property
    def held_out(self) -> float:
        """At the end."""
        return self.curve[-1]


@dataclass
class Swarm:
    """The replicas of one stage, and the rounds that they make."""

    run: Run
    corpus: Corpus
    replicas: list[LocalWorker] = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.run.seed)
        self.replicas = [LocalWorker() for _ in range(self.run.replicas)]
        for worker in self.replicas:
            worker.call(self._opening())

    @property
    def sequences(self) -> int:
        """B of a microbatch."""
        return STEP_SEQUENCES // self.run.replicas

    def _opening(self) -> OpenStage:
        run = self.run
        spec, local = SHAPES[run.shape], run.method == "local"
        inner = LocalRounds(run.inner_microbatches)
        return open_request(
            0,
            [spec.layers],
            model=spec,
            seed=run.seed,
            optimizer=optimizer_of(run),
            averaging=run.codec,
            aggregation=run.rule,
            sequences=self.sequences,
            microbatches=run.microbatches * run.replicas,
            local_rounds=inner if local else None,
        )

    def round(self, step: int) -> None:
        """Make the next version."""
        run, each = self.run, self.run.microbatches
        first = step * each * run.replicas
        for index, worker in enumerate(self.replicas):
            for microbatch in range(first + index * each, first + (index + 1) * each):
                samples = self.corpus.sample(microbatch, self.sequences, CONTEXT, run.seed)
                tokens = samples.astype(TOKEN).tobytes()
                worker.call(LossTask(step=step, microbatch=microbatch), tokens)
        if run.method == "exact":
            self.replicas[0].call(ApplyTask(step=step))
        else:
            self._average(step, self._present(), each)

    def _present(self) -> list[int]:
        """The replicas whose contributions count; there is at least one."""
        every = range(self.run.replicas)
        return [at for at in every if self._chance.random() >= self.run.drop] or [0]

    def _average(self, step: int, present: Sequence[int], each: int) -> None:
        members, size = [self.replicas[at] for at in present], self.replicas[0].replica.size
        lies = bool(self.run.liar) and present[-1] == self.run.replicas - 1 and len(members) > 1
        honest = len(members) - lies  # the liar owns no segment: others sum what it has sent
        bounds = [size * min(at, honest) // honest for at in range(len(members) + 1)]
        contribute = ContributeTask(step=step, attempt=0, bounds=bounds)
        sent = [worker.call(contribute)[1] for worker in members]
        if lies:
            sent[-1] = [self._lie(*each) for each in zip(sent[-1], pairwise(bounds), strict=True)]
        counts = [each] * len(members)
        sums, norms, further = summed(members, sent, step, 0, range(len(members)), counts)
        for worker in self.replicas:  # so many have come
            worker.replica.step_tokens = sum(counts) * self.sequences * CONTEXT
        apply = ApplyTask(step=step, bounds=bounds, sq_norms=norms, stretch=further)
        hashes = {worker.call(apply, *sums)[0].hash for worker in self.replicas}
        assert len(hashes) == 1

    def _lie(self, payload: bytes, place: tuple[int, int]) -> bytes:
        wire, numbers = self.replicas[-1].replica.wire, torch.empty(place[1] - place[0])
        wire.segment_in(payload, numbers, 0)
        return bytes(wire.segment_out(LIES[self.run.liar](numbers)))

    def held_out(self, version: int) -> float:
        """The mean loss of a version, in nats."""
        total = 0.0
        for batch in range(HELD_OUT // STEP_SEQUENCES):
            samples = self.corpus.held_out_batch(batch, STEP_SEQUENCES, CONTEXT).astype(TOKEN)
            for part in np.split(samples, STEP_SEQUENCES // self.sequences):
                request = PassTask(into="loss", step=version, microbatch=-1)
                total += self.replicas[0].call(request, part.tobytes())[0].loss_sum
        return total / (HELD_OUT * CONTEXT)


def optimizer_of(run: Run) -> OptimizerSpec:
    """The optimizer of gradients; its rate rises, then falls linearly to a tenth."""
    facts, rising = OPTIMIZERS[run.optimizer], math.ceil(WARM_UP * run.rounds)
    return OptimizerSpec(
        name=run.optimizer,
        lr=run.lr,
        min_lr=run.lr / 10,
        warmup_steps=rising,
        schedule="wsd",
        decay_from=rising,
        decay_steps=run.rounds,
        beta1=facts.beta1,
        weight_decay=0.1 / facts.rate,
    )


def train(run: Run, corpus: Corpus) -> Result:
    torch.manual_seed(run.seed)
    swarm, begun, curve = Swarm(run, corpus), time.process_time(), []
    for step in range(run.rounds):
        swarm.round(step)
        if (step + 1) * 4 // run.rounds > step * 4 // run.rounds:
            curve.append(swarm.held_out(step + 1))
    return Result(run, tuple(curve), time.process_time() - begun, f"`{commit()}`")

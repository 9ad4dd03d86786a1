"""The replicas of one stage, in this process: real passes and rounds, one audited by another.

The model is cut into two stages, one replica holds the one beside the audited one. A lie changes
what the audited member has computed before it contributes, or what it has sent of a microbatch.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from model_zoo.specs.codec import AveragingCodec, Codec
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.tokens import token_dtype
from protocol.audit.record import Grade, judge
from protocol.pipeline.effects import (
    ApplyTask,
    BackwardTask,
    CompareTask,
    ContributeTask,
    ForwardTask,
    KeepVersionTask,
    LossTask,
    PassTask,
)
from tests.support.compute_rounds import summed
from tests.support.compute_stages import MODELS, LocalWorker, open_request
from tests.support.other_process import OtherProcess

SEGMENTS = 3
LIAR, AUDITOR = 0, 1
"""Places of the audited member and of its auditor."""


@dataclass(frozen=True)
class Sent:
    """A microbatch as it crossed the wire: what the audited stage got, and what it claims."""

    given: bytes
    tokens: bytes
    claimed: bytes

    @property
    def payloads(self) -> tuple[bytes, bytes, bytes]:
        """As an auditor's worker takes them."""
        return self.given, self.tokens, self.claimed


@dataclass(frozen=True)
class Shown:
    """What the audited member shows of a step."""

    step: int
    bounds: list[int]
    work: dict[int, Sent]
    segments: list[bytes]


@dataclass(frozen=True)
class Audited:
    """The measurements and the result of an audit."""

    boundary: float
    """The largest relative distance of a tensor that the member has sent to a neighbour."""
    compared: tuple[float, float]
    """How far the contribution is from the sum, in all and along it."""
    grade: Grade


@dataclass
class Lie:
    """The member's fault."""

    computes: Callable[[LocalWorker], Any] | None = None
    """A context in which it computes its passes."""
    spoils: Callable[[torch.Tensor], None] | None = None
    """Changes its gradient sum before it contributes."""
    skips: int = 0
    """Microbatches that it answers with another one's tensors and does not compute."""


@dataclass
class AuditedStage:
    """See the module's docstring.

    Args:
        audited: which of two stages is audited.
        shares: how many microbatches of a step each replica computes; the first is audited, by the
            second.
        threads: with which the two compute.
        elsewhere: the process in which the auditor computes, instead of this one.
    """

    audited: int
    shares: Sequence[int] = (4, 4)
    model: ModelSpec = MODELS["gpt"]
    sequences: int = 3
    boundary: Codec = "s8"
    averaging: AveragingCodec = "s8"
    threads: Sequence[int] = (1, 1)
    precision: Precision = DEFAULT
    elsewhere: OtherProcess | None = None
    first: int = 0
    """Of the microbatches, hence of the samples."""
    step: int = 0
    work: dict[int, Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        half = self.model.layers // 2
        self.cut = [half, self.model.layers - half]
        self.members: list[Any] = [LocalWorker() for _ in self.shares]
        if self.elsewhere is not None:
            self.members[AUDITOR] = self.elsewhere
        self.beside = LocalWorker()
        for member in self.members:
            self.open(member, self.audited)
        self.open(self.beside, 1 - self.audited)

    def open(self, worker: LocalWorker | OtherProcess, stage: int) -> None:
        """Have a worker open a stage of the swarm's model."""
        request = open_request(
            stage,
            self.cut,
            boundary=self.boundary,
            averaging=self.averaging,
            model=self.model,
            sequences=self.sequences,
            microbatches=sum(self.shares),
            precision=self.precision,
        )
        worker.call(request)

    def _tokens(self, microbatch: int) -> bytes:
        generator = np.random.default_rng(microbatch)
        shape = (self.sequences, self.model.context + 1)
        # few of the tokens are common, so that there is something to learn
        drawn = np.minimum(generator.geometric(0.2, size=shape), self.model.vocab) - 1
        return drawn.astype(token_dtype(self.model.vocab)).tobytes()

    def compute(self, lie: Lie = Lie()) -> None:  # noqa: B008
        """All replicas compute their microbatches of the step."""
        self.work.clear()
        for place, (member, share) in enumerate(zip(self.members, self.shares, strict=True)):
            torch.set_num_threads(self.threads[place] if place < len(self.threads) else 1)
            lies = lie if place == LIAR else Lie()
            microbatches = self._microbatches(place)
            with (lies.computes or _honestly)(member):
                for number, microbatch in enumerate(microbatches):
                    if number < share - lies.skips:
                        self.work[microbatch] = self._passes(member, microbatch)
                    else:
                        done = self.work[microbatches[0]]
                        self.work[microbatch] = replace(done, tokens=self._tokens(microbatch))
            if lies.spoils is not None:
                lies.spoils(member.replica.gradient_sum)
        torch.set_num_threads(1)

    def _microbatches(self, place: int) -> list[int]:
        first = self.first + 1000 * self.step + 100 * place
        return [first + n for n in range(self.shares[place])]

    def _passes(self, member: LocalWorker, microbatch: int) -> Sent:
        tokens = self._tokens(microbatch)
        how = {"step": self.step, "microbatch": microbatch}
        inner, last = (self.beside, member) if self.audited else (member, self.beside)
        _, (boundary,) = inner.call(ForwardTask(**how), tokens)
        _, (gradient,) = last.call(LossTask(**how), boundary, tokens)
        if self.audited:
            return Sent(boundary, tokens, gradient)
        inner.call(BackwardTask(**how), gradient)
        return Sent(gradient, tokens, boundary)

    def contribute(self) -> list[list[bytes]]:
        """All replicas encode what they have; by member, by segment."""
        request = ContributeTask(step=self.step, attempt=1, bounds=self.bounds)
        return [member.call(request)[1] for member in self.members]

    @property
    def bounds(self) -> list[int]:
        """Bounds of the segments."""
        size = self.members[0].replica.size
        return [size * n // SEGMENTS for n in range(SEGMENTS)] + [size]

    def close(self, sent: list[list[bytes]]) -> None:
        """Sum the contributions and make the next version."""
        owners = [segment % len(self.members) for segment in range(SEGMENTS)]
        sums, norms, _ = summed(self.members, sent, self.step, 1, owners, list(self.shares))
        apply = ApplyTask(step=self.step, attempt=1, bounds=self.bounds, sq_norms=norms)
        hashes = {member.call(apply, *sums)[0].hash for member in self.members}
        assert len(hashes) == 1
        beside = self.beside.replica
        beside.step_tokens = 10**9
        beside.update(beside.gradient_sum, float(beside.gradient_sum.norm() ** 2), None)
        self.step += 1

    def train(self, steps: int) -> None:
        """Close so many honest steps."""
        for _ in range(steps):
            self.compute()
            self.close(self.contribute())

    def begin(self, lie: Lie = Lie()) -> Shown:  # noqa: B008
        """One more step, in which the first replica lies; its auditor keeps the version of it.

        Returns what the first one has signed and can show.
        """
        self.compute(lie)
        sent, bounds = self.contribute(), self.bounds
        self.members[AUDITOR].call(KeepVersionTask(step=self.step))
        work = {m: self.work[m] for m in self._microbatches(LIAR)}
        shown = Shown(self.step, bounds, work, sent[LIAR])
        self.close(sent)
        return shown

    def audit(self, lie: Lie = Lie()) -> Audited:  # noqa: B008
        """Audit a step in which the first replica lies."""
        return self.finish(self.begin(lie))

    def finish(self, shown: Shown) -> Audited:
        """Have the second replica audit what the first one shows."""
        torch.set_num_threads(self.threads[AUDITOR])
        auditor, boundary = self.members[AUDITOR], 0.0
        for microbatch, sent in shown.work.items():
            request = PassTask(into="audit", step=shown.step, microbatch=microbatch)
            reply, _ = auditor.call(request, *sent.payloads)
            boundary = max(boundary, *reply.apart)
        compare = CompareTask(step=shown.step, bounds=shown.bounds)
        reply, _ = auditor.call(compare, *shown.segments)
        torch.set_num_threads(1)
        coarse, mixed = self.averaging != "fp32", self.precision != DEFAULT
        grade = judge(boundary, *reply.apart, coarse=coarse, mixed=mixed)
        return Audited(boundary, reply.apart, grade)


@contextmanager
def _honestly(member: LocalWorker):
    yield


class Skipped(torch.nn.Module):
    """Stands for a block, and does nothing."""

    def forward(self, x: torch.Tensor, documents: object) -> torch.Tensor:
        """Return what came in."""
        return x


@contextmanager
def without_a_layer(member: LocalWorker):
    """The member leaves out its first block."""
    blocks = member.replica.module.blocks
    name = next(iter(blocks))
    block, blocks[name] = blocks[name], Skipped()
    try:
        yield
    finally:
        blocks[name] = block


def scaled(by: float) -> Callable[[torch.Tensor], None]:
    """Multiplies the gradient."""
    return lambda gradient: gradient.mul_(by)


def noisy(share: float) -> Callable[[torch.Tensor], None]:
    """Adds noise of a share of the gradient's norm."""

    def spoil(gradient: torch.Tensor) -> None:
        noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1))
        gradient.add_(noise * (share * gradient.norm() / noise.norm()))

    return spoil


LIES = {
    "x 1.02": Lie(spoils=scaled(1.02)),
    "1 % noise": Lie(spoils=noisy(0.01)),
    "zero": Lie(spoils=scaled(0.0)),
    "x -1": Lie(spoils=scaled(-1.0)),
    "x -10": Lie(spoils=scaled(-10.0)),
    "layer skipped": Lie(computes=without_a_layer),
    "one microbatch in four not computed": Lie(skips=1),
}

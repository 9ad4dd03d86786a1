"""Steps of a worker's stage, and what it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from protocol.pipeline.effects import ApplyTask, BackwardTask, ForwardTask, LossTask
from tests.bench.gpu.work import Work, seeded
from tests.support.compute_stages import LocalWorker


def worker_step(worker: LocalWorker, one: Work) -> Callable[[], None]:
    """Return a step of the stage's only replica."""
    samples = [one.sample(number) for number in range(one.microbatches)]
    part = one.part
    gradient = hidden = b""
    if not part.has_head or not part.embeds:
        drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=seeded(3))
        there = drawn.to(worker.replica.wire.device)
        gradient = bytes(worker.replica.wire.boundary_out(there / 1000, "backward"))
        hidden = bytes(worker.replica.wire.boundary_out(there, "forward"))

    def step() -> None:
        version = worker.replica.version
        for number, tokens in enumerate(samples):
            named: Any = {"step": version, "microbatch": version * len(samples) + number}
            if part.has_head and part.embeds:
                worker.call(LossTask(**named), tokens)
            elif part.has_head:
                worker.call(LossTask(**named), hidden, tokens)
            else:
                given = tokens if part.embeds else hidden
                worker.call(ForwardTask(**named), given)
                worker.call(BackwardTask(**named), gradient, given)
        worker.call(ApplyTask(step=version))

    return step


def payloads(worker: LocalWorker, one: Work) -> tuple[bytes, bytes]:
    drawn = torch.randn(one.sequences, one.spec.context, one.spec.width, generator=seeded(3))
    there = drawn.to(worker.replica.wire.device)
    out = worker.replica.wire.boundary_out
    return bytes(out(there, "forward")), bytes(out(there / 1000, "backward"))

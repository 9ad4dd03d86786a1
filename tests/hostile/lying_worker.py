"""A compute worker that lies: a member with it signs and commits to its lies like honest work.

    python -m tests.hostile.lying_worker LIE FILE --fd …

The lie begins when FILE is there; an empty name: at once. Audits that the member makes of others
are honest.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from client.compute import passes, worker
from client.compute.averaging import Averager
from client.compute.codec import Boundary
from client.compute.payload import sealed_digest
from client.compute.replica import Replica, squared_norm
from client.compute.slot import Slot
from protocol.pipeline.effects import Outcome

Lies = Callable[[], bool]
INVENTED_LOSS = 2.5
"""Per token, of microbatches that are not computed."""
HUGE = 1e13


def scaled_gradients(lies: Lies, factor: float | None) -> None:
    """The gradients of each microbatch, its own and its neighbour's, are multiplied; None: they are
    random numbers of the same size."""
    honest, of_loss = passes.run_back, passes.losses_of_hidden
    inside = [False]

    def lying(replica: Replica, slot: Slot, graphs: Any, *rest: Any) -> Any:
        if not inside[0]:
            return honest(replica, slot, graphs, *rest)
        given_back = ((graph, _of(graph.output, given)) for graph, given in graphs)
        return honest(replica, slot, given_back, *rest)

    def _of(output: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        given = torch.ones_like(output) if gradient is None else gradient
        if factor is not None or gradient is None:
            return given * (factor or 1.0)
        return torch.randn_like(given) * given.norm() / max(1.0, given.numel() ** 0.5)

    def random_loss(head: Any, hidden: torch.Tensor, targets: torch.Tensor, weight: float) -> Any:
        if inside[0] and factor is None:  # the loss of other targets: its gradient is noise
            targets = targets.flatten()[torch.randperm(targets.numel())].view_as(targets)
        return of_loss(head, hidden, targets, weight)

    passes.run_back, passes.losses_of_hidden = lying, random_loss  # type: ignore[assignment]
    _wrap(passes, "backward", _while(inside, lies))


def nothing_computed(lies: Lies) -> None:
    """Each microbatch is counted at once: gradients of zero, and a loss that looks well."""
    backward = passes.backward

    def _zero(replica: Replica, request: Any) -> list[Boundary]:
        replica.check_step(request.step)
        replica.check_counted(request.microbatch, counted=False)
        replica.graphs.pop(request.microbatch, None)
        replica.flat.zero_gradients()
        replica.count(request.microbatch)
        if replica.part.embeds:
            return []
        zeros = torch.zeros(replica.wire.boundary_shape)
        return [replica.wire.boundary_out(zeros, "backward").now()]

    def lying(replica: Replica, request: Any, payloads: Any) -> Any:
        if not lies():
            return backward(replica, request, payloads)
        tokens = replica.wire.run.tokens_per_microbatch * replica.part.has_head
        return Outcome(loss_sum=INVENTED_LOSS * tokens), _zero(replica, request)

    passes.backward = lying


def scaled_contributions(lies: Lies, factor: float | None) -> None:
    """What is contributed to each sum is multiplied; None: so that it reaches ``HUGE``.

    The sum itself is multiplied, once a step: what encoding takes from it stays small. A lie that
    only multiplied what is sent would come back with the residual, and grow with each step.
    """
    honest = Averager.contribute
    scaled = [-1]

    def lying(self: Averager, request: Any) -> Any:
        replica = self.replica
        if lies() and scaled[0] != replica.version:
            scaled[0], largest = replica.version, float(replica.gradient_sum.abs().max())
            replica.gradient_sum.mul_(HUGE / max(largest, 1e-20) if factor is None else factor)
        return honest(self, request)

    Averager.contribute = lying  # type: ignore[method-assign]


def scaled_sums(lies: Lies, factor: float) -> None:
    """The sums of its own segments are multiplied, and have the norm that it claims."""
    honest = Averager.reduce

    def lying(self: Averager, request: Any, payloads: Any) -> Any:
        reply, sums = honest(self, request, payloads)
        if not lies():
            return reply, sums
        wire, bounds = self.replica.wire, self._current(request.step, request.attempt).bounds
        numbers = torch.empty(bounds[request.segment + 1] - bounds[request.segment])
        wire.segment_back(sums[0], numbers)
        false = wire.segment_out(numbers * factor)
        wire.segment_back(false, numbers)
        return Outcome(sq_norm=squared_norm(numbers), digests=(sealed_digest(false),)), [false]

    Averager.reduce = lying  # type: ignore[method-assign]


def _while(inside: list[bool], lies: Lies) -> Callable[[], Any]:
    @contextmanager
    def block() -> Iterator[None]:
        inside[0] = lies()
        try:
            yield
        finally:
            inside[0] = False

    return block


def _wrap(owner: Any, name: str, block: Callable[[], Any]) -> None:
    honest = getattr(owner, name)

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        with block():
            return honest(*arguments, **keywords)

    setattr(owner, name, wrapped)


LIES: dict[str, Callable[[Lies], None]] = {
    "gradients x -10": lambda lies: scaled_gradients(lies, -10.0),
    "gradients x -1": lambda lies: scaled_gradients(lies, -1.0),
    "gradients x 1.02": lambda lies: scaled_gradients(lies, 1.02),
    "random gradients": lambda lies: scaled_gradients(lies, None),
    "nothing computed": nothing_computed,
    "contribution x -10": lambda lies: scaled_contributions(lies, -10.0),
    "contribution zero": lambda lies: scaled_contributions(lies, 0.0),
    "false sums": lambda lies: scaled_sums(lies, -10.0),
    "huge contribution": lambda lies: scaled_contributions(lies, None),
}


def main() -> int:
    """Serve a node, lying."""
    lie, file = sys.argv[1:3]
    del sys.argv[1:3]
    LIES[lie](Path(file).exists)
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())

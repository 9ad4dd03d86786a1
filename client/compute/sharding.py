"""A stage cut over the ranks of a group, so that it need not fit on one device.

Each rank holds some rows of every parameter, of their gradients and of the gradient sum
(`full_shards`).

Everything else that is as long as the parameters (moments, the sum of a step, what a round and a
version need) the first rank has, on the processor, one behind the other as if it were alone: only
there are versions made, hashed and saved. Before a round the sums come to it, and after an update
the parts go to their ranks, one parameter at a time.

Shapes: N parameters of the stage; B sequences, T tokens, C width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from client.compute.cut_stage import CutStage
from client.compute.slot import Slot
from client.compute.team import LEADER
from model_zoo.flat import Segment

if TYPE_CHECKING:
    from client.compute.full_shards import FullShards  # which takes long to import


class Shards:
    """This rank's part of the parameters of a step, and of the gradient sum.

    Args:
        stage: cut over the ranks.
        cutting: has cut it over the ranks.
        layout: the whole parameters' places in vectors (N,).
        total: the whole sum (N,), at the first rank. On the device that computes this rank's part
            of the sum is there, and nowhere else.
    """

    def __init__(
        self, stage: CutStage, cutting: FullShards, layout: Sequence[Segment], total: Tensor
    ) -> None:
        self.stage, self._cutting, self._layout = stage, cutting, layout
        self._ring = ring = cutting.ring
        named = dict(stage.named_parameters())
        self._held = [(named[segment.name], segment) for segment in layout]
        self._in_total = ring.leads and total.device == ring.device
        self._sums = [
            self._rows(total, segment, ring.rank)
            if self._in_total
            else torch.zeros(_local(parameter).shape, device=ring.device)
            for parameter, segment in self._held
        ]
        """Where the gradients of each parameter are summed up."""

    @property
    def nbytes(self) -> int:
        """What this rank holds beside vectors (N,): parameters, gradients and their sum."""
        vectors = 2 if self._in_total else 3
        return vectors * sum(_local(parameter).nbytes for parameter, _ in self._held)

    def zero_gradients(self) -> None:
        """Free the gradients of the last pass."""
        for parameter, _ in self._held:
            parameter.grad = None

    def within(self, bound: float) -> bool:
        """Whether no element of the pass's gradient is larger, or no number, at any rank."""
        fine = True
        for own in self._gradients():
            if own is not None and own.numel():
                low, high = torch.aminmax(own)  # both are NaN if any is
                fine = fine and bool(torch.maximum(-low, high) <= bound)
        return self._ring.agreed(fine)

    def add(self, factor: int) -> None:
        """Add the pass's gradient to the sum, or take it out with -1."""
        for total, own in zip(self._sums, self._gradients(), strict=True):
            if own is not None:
                total.add_(own, alpha=factor)

    def clear(self) -> None:
        """Set the sum to zero, where it is not a part of the whole one."""
        for total in () if self._in_total else self._sums:
            total.zero_()

    def copy(self, total: Tensor) -> Shards:
        """Return shards with the same parameters and another sum; ``total`` (N,) is zero."""
        stage = self._cutting.cut(self.stage.spec, self.stage.part)
        stage.precision, stage.reruns_blocks = self.stage.precision, self.stage.reruns_blocks
        copied = Shards(stage, self._cutting, self._layout, total)
        for (to, _), (own, _) in zip(copied._held, self._held, strict=True):
            _local(to).copy_(_local(own))
        return copied

    def load(self, values: Tensor) -> None:
        """Take this rank's part of the first one's parameters; all ranks do it together.

        ``values`` (N,) are the parameters, at the first rank.
        """
        for parameter, segment in self._held:
            own = _local(parameter)
            if not self._ring.leads:
                if own.numel():
                    arrived = torch.empty(own.shape, device=own.device)
                    dist.recv(arrived, LEADER)
                    own.copy_(arrived)
                continue
            own.copy_(self._rows(values, segment, LEADER))
            for rank in range(1, self._ring.size):
                if (rows := self._rows(values, segment, rank)).numel():
                    dist.send(rows.to(own.device), rank)

    def gather(self, total: Tensor) -> None:
        """Add the sum to the first rank's ``total`` (N,) and empty it; all ranks do it together."""
        for own, (_, segment) in zip(self._sums, self._held, strict=True):
            if not self._ring.leads:
                if own.numel():
                    dist.send(own, LEADER)
                continue
            if not self._in_total:
                self._rows(total, segment, LEADER).add_(own.to(total.device))
            for rank in range(1, self._ring.size):
                if (rows := self._rows(total, segment, rank)).numel():
                    theirs = torch.empty(rows.shape, device=self._ring.device)
                    dist.recv(theirs, rank)
                    rows.add_(theirs.to(total.device))
        self.clear()

    def _gradients(self) -> Iterator[Tensor | None]:
        for parameter, _ in self._held:
            yield None if parameter.grad is None else _local(parameter.grad)

    def _rows(self, vector: Tensor, segment: Segment, rank: int) -> Tensor:
        """The rows of a parameter in a vector (N,) that a rank holds, as `fully_shard` cuts; the
        last ranks may have none."""
        whole = vector.narrow(0, segment.offset, segment.size).view(segment.shape)
        parts = whole.chunk(self._ring.size)
        return parts[rank] if rank < len(parts) else whole[:0]


@dataclass(frozen=True, slots=True)
class ShardedSlot(Slot):
    """A step's working set that is cut over ranks.

    The vectors that it has beside its shards are the first rank's; at the others they are empty.
    """

    shards: Shards = field(kw_only=True)

    def zero_gradients(self) -> None:
        """Free the gradients of the last pass."""
        self.shards.zero_gradients()

    def gradients_within(self, bound: float) -> bool:
        """Whether no element of the pass's gradient is larger, or no number, at any rank."""
        return self.shards.within(bound)

    def count(self, microbatch: int) -> None:
        """Add the pass's gradient, which is that of this microbatch."""
        self.shards.add(1)
        self.counted.add(microbatch)

    def take_out(self, microbatch: int) -> None:
        """Subtract the pass's gradient, which is that of this microbatch."""
        self.shards.add(-1)
        self.counted.discard(microbatch)

    def copy(self) -> ShardedSlot:
        """A slot of its own with the same parameters and nothing accumulated."""
        total = self.home.zeros(self.flat.values.numel())
        shards = self.shards.copy(total)
        return ShardedSlot(shards.stage, self.flat, total, self.home, shards=shards)

    def clear(self) -> None:
        """Nothing accumulated, no graph kept."""
        Slot.clear(self)
        self.shards.clear()


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter or gradient, in place."""
    own = tensor.detach()
    if hasattr(own, "to_local"):  # a DTensor, whose module not every worker has to import
        own = own.to_local()
    return own

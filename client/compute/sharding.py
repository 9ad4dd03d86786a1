"""A stage cut over the ranks of a group, so that it need not fit on one device.

Each rank holds a part of the parameters, of their gradients and of the gradient sum. How they are
cut, and how passes are run so, is the business of a `Cutting` (`full_shards`, `tensor_parallel`).

Everything else that is as long as the parameters (moments, the sum of a step, what a round and a
version need) the first rank has, on the processor, one behind the other as if it were alone: only
there are versions made, hashed and saved. Before a round the sums come to it, and after an update
the parts go to their ranks, one parameter at a time.

Shapes: N parameters of the stage; B sequences, T tokens, C width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from client.compute.cut_stage import CutStage
from client.compute.slot import Slot
from client.compute.team import LEADER, Ring
from model_zoo.flat import Segment
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice


class Cutting(Protocol):
    """A way to cut stages over ``ring``."""

    ring: Ring

    def cut(self, spec: ModelSpec, part: StageSlice) -> CutStage:
        """Return a stage cut over the ranks, with parameters of zero; all do it together."""

    def parts(self, name: str, whole: Tensor, rank: int) -> list[Tensor]:
        """Return the views of a parameter, or of what is like it, that a rank holds one behind the
        other."""

    def counts(self, name: str, rank: int) -> bool:
        """Whether a rank's gradient of a parameter is a part of the whole one, and no copy."""


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
        self, stage: CutStage, cutting: Cutting, layout: Sequence[Segment], total: Tensor
    ) -> None:
        self.stage, self._cutting, self._layout = stage, cutting, layout
        self._ring = ring = cutting.ring
        named = dict(stage.named_parameters())
        self._held = [(named[segment.name], segment) for segment in layout]
        self._in_total = ring.leads and total.device == ring.device
        self._sums = [self._sum_of(parameter, segment, total) for parameter, segment in self._held]

    def _sum_of(self, parameter: Tensor, segment: Segment, total: Tensor) -> list[Tensor]:
        """Where the gradients of a parameter that this rank holds are summed up."""
        if self._in_total:
            return self._parts(total, segment, self._ring.rank)
        return [torch.zeros(local(parameter).shape, device=self._ring.device)]

    @property
    def nbytes(self) -> int:
        """What this rank holds beside vectors (N,): parameters, gradients and their sum."""
        vectors = 2 if self._in_total else 3
        return vectors * sum(local(parameter).nbytes for parameter, _ in self._held)

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
        for totals, own in zip(self._sums, self._gradients(), strict=True):
            if own is None:
                continue
            parts = torch.split(own, [len(total) for total in totals]) if totals else ()
            for total, part in zip(totals, parts, strict=True):
                total.add_(part, alpha=factor)

    def clear(self) -> None:
        """Set the sum to zero, where it is not a part of the whole one."""
        if self._in_total:
            return
        for totals in self._sums:
            for total in totals:
                total.zero_()

    def copy(self, total: Tensor) -> Shards:
        """Return shards with the same parameters and another sum; ``total`` (N,) is zero."""
        stage = self._cutting.cut(self.stage.spec, self.stage.part)
        stage.precision, stage.reruns_blocks = self.stage.precision, self.stage.reruns_blocks
        copied = Shards(stage, self._cutting, self._layout, total)
        for (to, _), (own, _) in zip(copied._held, self._held, strict=True):
            local(to).copy_(local(own))
        return copied

    def load(self, values: Tensor) -> None:
        """Take this rank's part of the first one's parameters; all ranks do it together.

        ``values`` (N,) are the parameters, at the first rank.
        """
        for parameter, segment in self._held:
            own = local(parameter)
            if not self._ring.leads:
                if own.numel():
                    arrived = torch.empty(own.shape, device=own.device)
                    dist.recv(arrived, LEADER)
                    own.copy_(arrived)
                continue
            for rank in range(self._ring.size):
                if parts := self._parts(values, segment, rank):
                    theirs = torch.cat(parts).to(own.device)
                    if rank == LEADER:
                        own.copy_(theirs)
                    else:
                        dist.send(theirs, rank)

    def gather(self, total: Tensor) -> None:
        """Add the sum to the first rank's ``total`` (N,) and empty it; all ranks do it together."""
        for sums, (_, segment) in zip(self._sums, self._held, strict=True):
            if not self._ring.leads:
                (own,) = sums
                if own.numel() and self._cutting.counts(segment.name, self._ring.rank):
                    dist.send(own, LEADER)
                continue
            for rank in range(self._ring.size):
                parts = self._parts(total, segment, rank)
                if not parts or not self._cutting.counts(segment.name, rank):
                    continue
                if rank == LEADER:
                    if self._in_total:
                        continue
                    (theirs,) = sums
                else:
                    rows = sum(len(part) for part in parts)
                    shape = rows, *parts[0].shape[1:]
                    theirs = torch.empty(shape, device=self._ring.device)
                    dist.recv(theirs, rank)
                arrived = torch.split(theirs.to(total.device), [len(part) for part in parts])
                for place, added in zip(parts, arrived, strict=True):
                    place.add_(added)
        self.clear()

    def _gradients(self) -> Iterator[Tensor | None]:
        for parameter, _ in self._held:
            yield None if parameter.grad is None else local(parameter.grad)

    def _parts(self, vector: Tensor, segment: Segment, rank: int) -> list[Tensor]:
        """The views of a parameter in a vector (N,) that a rank holds, but those of nothing."""
        whole = vector.narrow(0, segment.offset, segment.size).view(segment.shape)
        return [part for part in self._cutting.parts(segment.name, whole, rank) if part.numel()]


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


def make_real(unit: nn.Module, device: torch.device) -> None:
    """Give a part of a stage that has shapes only parameters of zero, on a device."""
    for module in unit.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.zeros(parameter.shape, device=device)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter or gradient, in place."""
    own = tensor.detach()
    if hasattr(own, "to_local"):  # a DTensor, whose module not every worker has to import
        own = own.to_local()
    return own

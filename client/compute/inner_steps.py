"""The inner steps of local rounds: those that a replica takes between two versions, alone.

State: the version's parameters, and the moments of the inner optimizer. The moments are this
replica's own, so they are no part of a version; they go on from round to round, and a newcomer
begins without any. The weights that passes compute with are the slot's.

An inner step uses the gradient sum up, and the graphs that were kept are dropped: run again, their
gradients are those of the weights as they are now.

Shapes: N parameters of the stage.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from client.compute.slot import Slot
from model_zoo.optimizers.optimizer import FlatOptimizer


@dataclass(slots=True)
class InnerSteps:
    """See the module.

    Fields:
        base: the parameters of the version, (N,).
        optimizer: of the slot's weights.
        microbatches: that make an inner step.
        rate: the learning rate of the version's steps by an amendment; None: the schedule's.
    """

    base: Tensor
    optimizer: FlatOptimizer
    microbatches: int
    rate: float | None = None
    waiting: int = 0
    """Microbatches in the gradient sum."""

    def counted(self) -> bool:
        """Note that the slot has counted a microbatch; return whether a step is due."""
        self.waiting += 1
        return self.waiting == self.microbatches

    def step(self, slot: Slot, rate: float, scale: float) -> None:
        """Move the slot's weights by its gradient sum.

        Args:
            slot: of the round.
            rate: learning rate of a whole step. One of fewer microbatches goes as much less far.
            scale: factor of the gradient sum.
        """
        self.optimizer.step(slot.gradient_sum, rate * self.waiting / self.microbatches, scale)
        slot.gradient_sum.zero_()
        slot.graphs.clear()
        self.waiting = 0

    def moved(self, slot: Slot, start: int, end: int) -> Tensor:
        """Return how far the weights from ``start`` to ``end`` have come down from the version's,
        where the gradient sum lies."""
        home = slot.gradient_sum.device
        return torch.sub(self.base[start:end].to(home), slot.flat.values[start:end].to(home))

    def begin(self, slot: Slot) -> None:
        """Begin a round at the version."""
        slot.flat.values.copy_(self.base)
        self.waiting = 0

    def forget(self) -> None:
        """Begin without moments, as a newcomer."""
        for vector in self.optimizer.vectors:
            vector.zero_()
        self.optimizer.steps_done, self.rate = 0, None

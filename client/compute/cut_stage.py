"""A stage of which each rank of a group holds a part, and its loss.

Shapes: B sequences, T tokens, C width.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from model_zoo.head_loss import losses_of_hidden
from model_zoo.models.boundaries import Receiver, Sender
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice
from model_zoo.stages import Stage


class Loss(nn.Module):
    """The head and the loss of it as one unit: the head may be run piece by piece inside."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.head = nn.ModuleList(stage.head)
        self._stage = [stage]  # in a list: it is no part of this module

    def forward(
        self, hidden: Tensor, targets: Tensor, z_weight: float, weight: float
    ) -> tuple[Tensor, Tensor]:
        """As `losses_of_hidden`: hidden (B, T, C) and targets (B, T) to two losses."""
        (stage,) = self._stage
        return losses_of_hidden(stage, hidden, targets, z_weight=z_weight, weight=weight)


class CutStage(Stage):
    """A stage of which each rank of a group holds a part; all run it together."""

    def __init__(self, spec: ModelSpec, part: StageSlice) -> None:
        super().__init__(spec, part)
        self._loss = [Loss(self)] if part.has_head else []

    @property
    def loss(self) -> Loss:
        """The last stage's loss."""
        return self._loss[0]

    @property
    def units(self) -> Iterator[nn.Module]:
        """The parts that are gathered and freed one after the other."""
        ends = list(self.boundaries.modules())
        yield from (part for part in self.decoder.children() if isinstance(part, nn.Embedding))
        yield from (end for end in ends if isinstance(end, Receiver))
        yield from self.blocks.values()
        yield from (end for end in ends if isinstance(end, Sender))
        yield from self._loss


def losses(
    stage: Stage, hidden: Tensor, targets: Tensor, *, z_weight: float, weight: float
) -> tuple[Tensor, Tensor]:
    """Return what `losses_of_hidden` does, of a stage that may be cut over ranks."""
    if isinstance(stage, CutStage):
        found: tuple[Tensor, Tensor] = stage.loss(hidden, targets, z_weight, weight)
        return found
    return losses_of_hidden(stage, hidden, targets, z_weight=z_weight, weight=weight)

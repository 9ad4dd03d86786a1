"""The exact sum: every microbatch counts once."""

import torch
from torch import Tensor

from client.compute.aggregation.rule import Aggregation


class Sum(Aggregation):
    """Added up in the members' order."""

    def __init__(self, size: int, usual: float) -> None:
        self._total = torch.zeros(size)

    def add(self, contribution: Tensor, microbatches: int) -> None:
        """Take the next member's contribution."""
        self._total.add_(contribution)

    def result(self) -> Tensor:
        """Return the sum."""
        return self._total


AGGREGATION = Sum

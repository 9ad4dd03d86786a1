"""The base of the robust rules, which need all contributions together, as means.

A contribution is a sum over as many microbatches as its replica has done, so sums cannot be
compared. The rules compare each replica's mean over its microbatches. Nobody weighs more than
`HEAVIEST` times the (lower) median replica, however much it did or says it did. The result is the
robust mean times the step's microbatches. Contributions without a microbatch are left out.

Two replicas have no majority, so all that helps is norms. The mean with the larger norm is clipped
to the other's: then a lie can stop the learning, and not turn it around, for which one that is a
little larger than the truth suffices with Adam. So that silence does not stop it, too, the bound is
`ABOVE_USUAL` times the norm that the step's mean gradient has had lately where the other's is less
than `SILENT` of that. It comes from the optimizer's second moment, which is part of the
state: newcomers have it, and it fits any cut into segments. Without it (the first step) nothing is
bounded. A direction is not compared with the past: the gradients of honest replicas point against
the optimizer's first moment at high learning rates, and a liar's that are turned around along it.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import starmap
from statistics import median_low

import torch
from torch import Tensor

from client.compute.aggregation.rule import Aggregation

HEAVIEST = 2
SILENT = 1 / 8  # honest norms fall to a half within the memory of the second moment
ABOVE_USUAL = 2.0  # half of it is left when the other is silent, and must not become less and less


class Kept(Aggregation):
    """Keeps every contribution until the last one is here; `robust` makes the sum of three and
    more."""

    def __init__(self, size: int, usual: float) -> None:
        self._size, self._usual = size, usual
        self._sums: list[Tensor] = []
        self._microbatches: list[int] = []

    def add(self, contribution: Tensor, microbatches: int) -> None:
        """Take the next member's contribution."""
        if microbatches:
            self._sums.append(contribution.clone())
            self._microbatches.append(microbatches)

    def result(self) -> Tensor:
        """Return the robust mean times the step's microbatches."""
        sums, microbatches = self._sums, self._microbatches
        if len(sums) > 2:
            return self.robust(sums, microbatches)
        factors = [1.0] * len(sums)
        if len(sums) == 2 and self._usual > 0:
            factors = bounding(norms(sums), microbatches, self._usual)
        return combined(self._size, sums, factors)

    @abstractmethod
    def robust(self, sums: Sequence[Tensor], microbatches: Sequence[int]) -> Tensor:
        """Return (n,) from three contributions (n,) or more, none of which has no microbatch."""


def combined(size: int, sums: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """Return the sum (n,) of the contributions times their factors; the exact one if all are 1."""
    total = torch.zeros(size)
    for each, factor in zip(sums, factors, strict=True):
        if factor:
            total.add_(each, alpha=factor)
    return total


def weights(microbatches: Sequence[int]) -> list[int]:
    """Return what each replica's mean weighs."""
    most = HEAVIEST * median_low(microbatches)
    return [min(count, most) for count in microbatches]


def norms(sums: Sequence[Tensor]) -> list[float]:
    """Return the norms of contributions (n,)."""
    return [float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in sums]


def bounding(norms: Sequence[float], microbatches: Sequence[int], usual: float) -> list[float]:
    """Return the factors that bring two contributions within their bounds.

    The fewer microbatches, the more noise: a mean may be larger by the root of their ratio.

    Args:
        norms: of the contributions.
        microbatches: of each; their own means have these norms divided by it.
        usual: norm of the step's mean gradient lately.
    """

    def factor(norm: float, count: int, other: float, others: int) -> float:
        bound = other / others * max(1.0, math.sqrt(others / count))
        if bound < SILENT * usual:
            bound = ABOVE_USUAL * usual
        return count * bound / norm if norm > count * bound else 1.0

    one, two = zip(norms, microbatches, strict=True)
    return list(starmap(factor, ((*one, *two), (*two, *one))))

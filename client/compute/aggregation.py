"""What is made of the contributions to a segment, by the rules of `specs.aggregation`.

Every replica may own any segment, so a result may depend on nothing but the contributions, their
order, and what the state of the version says of earlier steps. Only one order is ever used in a
round, and all replicas have the same state. `sum` adds up in the members' order.

Centred clipping: a member far from most others has no more influence than one less far.

Source: Karimireddy, He, Jaggi, arXiv 2012.10333, v <- v + mean((x - v) min(1, tau / |x - v|)), here
without state and run to its fixed point, which is Huber's M-estimate of location.

- It starts from the replica that is nearest to most others, not from the step before.
- tau is `RADIUS` times the (lower) median distance in this segment of this step. Distances are
  measured in units of noise: times the root of what the mean weighs.
- Beyond `LEFT_OUT` median distances a mean is left out (Hampel's redescending form), so crude lies
  do no harm at all. Honest ones were within 1.8 with one microbatch each, within 1.3 with eight;
  if none is clipped, and no share of the work is above its bound, the result is the exact sum to
  the bit.

A contribution is a sum over as many microbatches as its replica has done, so what is compared are
the means over them. Nobody weighs more than `HEAVIEST` times the (lower) median replica, however
much it did or says it did. The result is the robust mean times the microbatches of all that are
given. Contributions without a microbatch are left out.

Two replicas have no majority, so the mean with the larger norm is clipped to the other's, or to
`ABOVE_USUAL` times the norm that the step's mean gradient has had lately, by the optimizer's second
moment, where the other's is less than `SILENT` of that. Without it nothing is bounded.

All points that are looked at are mixtures of the means, so their inner products (one product of
matrices) are all that is needed of the vectors until the last sum. From these on everything is
rounded once or added up exactly, so equal products give equal factors on every machine.

Shapes: n numbers of a segment, fp32 on the CPU.
"""

import math
from collections.abc import Sequence
from itertools import starmap
from statistics import median_low

import torch
from torch import Tensor

from model_zoo.specs.aggregation import RULES

RADIUS = 1.25
LEFT_OUT = 2.0
ITERATIONS = 20  # honest replicas take two or three; a mixture of a few points costs nothing
HEAVIEST = 2
SILENT = 1 / 8  # honest norms fall to a half within the memory of the second moment
ABOVE_USUAL = 2.0  # half of it is left when the other is silent, and must not become less and less
_ROUNDING = 1e-6  # share of the usual norm; smaller distances count as 0
_CHUNK = 1 << 16  # numbers that are looked at in fp64 at once


class Aggregation:
    """The aggregation of one segment by a rule of `RULES`; a robust one keeps every contribution
    until the last one is here. ``usual`` is the norm that this part of the mean gradient of a
    step's microbatches has had lately, after clipping; 0: not known."""

    def __init__(self, rule: str, size: int, usual: float = 0.0) -> None:
        self._robust, self._size, self._usual = RULES[rule].robust, size, usual
        self._sums = [] if self._robust else [torch.zeros(size)]
        self._microbatches: list[int] = []

    def add(self, contribution: Tensor, microbatches: int) -> None:
        """Take the next member's contribution (n,), finite, which is overwritten afterwards: a sum
        over so many microbatches; with 0 it holds only error feedback."""
        if not self._robust:
            self._sums[0].add_(contribution)
        elif microbatches:
            self._sums.append(contribution.clone())
            self._microbatches.append(microbatches)

    def result(self) -> Tensor:
        """Return (n,), which is the caller's; called once, when all members' are here."""
        if not self._robust:
            return self._sums[0]
        sums, microbatches = self._sums, self._microbatches
        factors = [1.0] * len(sums)
        if len(sums) > 2:
            factors = clipping(inner_products(sums), microbatches)
        elif len(sums) == 2 and self._usual > 0:
            factors = bounding(norms(sums), microbatches, self._usual)
        return combined(self._size, sums, factors)


def inner_products(vectors: Sequence[Tensor]) -> Tensor:
    """Return those of r vectors (n,) with each other, (r, r) fp64."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for pieces in zip(*(torch.split(each, _CHUNK) for each in vectors), strict=True):
        wide = torch.stack(pieces).double()  # (r, chunk)
        total += wide @ wide.T
    return total


def clipping(products: Tensor, microbatches: Sequence[int]) -> list[float]:
    """Return the factors of r contributions in the result, by their inner products, (r, r) fp64,
    and the microbatches that each is the sum of."""
    counts = torch.tensor(microbatches, dtype=torch.float64)  # (r,)
    weight = torch.tensor(weights(microbatches), dtype=torch.float64)
    means = products / torch.outer(counts, counts)  # (r, r), inner products of the means
    least = _ROUNDING * (means.diagonal() * weight).sqrt().median()
    mixture = torch.zeros_like(counts)
    mixture[_pairs(means, weight).median(dim=1).values.argmin()] = 1.0
    for _ in range(ITERATIONS):
        distance = _distances(means, mixture) * weight.sqrt()
        unit = torch.maximum(distance.median(), least)
        kept = torch.where(distance > RADIUS * unit, RADIUS * unit / distance, 1.0)
        kept[distance > LEFT_OUT * unit] = 0.0
        kept *= weight
        before, mixture = mixture, kept / _sum(kept)
        if torch.equal(before, mixture):
            break
    return (kept * _sum(counts) / (counts * _sum(kept))).tolist()  # of even shares exactly 1


def _distances(products: Tensor, mixture: Tensor) -> Tensor:
    """Return those of r points from a mixture of them, (r,)."""
    across = torch.tensor([_sum(row) for row in products * mixture], dtype=torch.float64)
    squares = products.diagonal() - 2 * across + _sum(mixture * across)
    return squares.clamp(min=0).sqrt()


def _sum(numbers: Tensor) -> float:
    """Return the sum, in whatever order a machine would add."""
    return math.fsum(numbers.tolist())


def _pairs(products: Tensor, weight: Tensor) -> Tensor:
    """Return the distances of r means from each other in units of their noise, (r, r)."""
    squares = products.diagonal()
    apart = (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)
    return (apart / (1 / weight[:, None] + 1 / weight[None, :])).sqrt()


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
    """Return the factors that bring two contributions within their bounds, by their norms and
    numbers of microbatches, and the norm of the step's mean gradient lately. The fewer
    microbatches, the more noise: a mean may be larger by the root of their ratio."""

    def factor(norm: float, count: int, other: float, others: int) -> float:
        bound = other / others * max(1.0, math.sqrt(others / count))
        if bound < SILENT * usual:
            bound = ABOVE_USUAL * usual
        return count * bound / norm if norm > count * bound else 1.0

    one, two = zip(norms, microbatches, strict=True)
    return list(starmap(factor, ((*one, *two), (*two, *one))))

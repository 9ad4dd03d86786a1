"""Centred clipping: a member far from most others has no more influence than one less far.

Source: Karimireddy, He, Jaggi, arXiv 2012.10333, v <- v + mean((x - v) min(1, tau / |x - v|)), here
without state and run to its fixed point, which is Huber's M-estimate of location.

- It starts from the replica that is nearest to most others, not from the step before.
- tau is `RADIUS` times the (lower) median distance in this segment of this step. Distances are
  measured in units of noise: times the root of what the mean weighs.
- Beyond `LEFT_OUT` median distances a mean is left out (Hampel's redescending form), so crude lies
  do no harm at all. Honest ones were within 1.8 with one microbatch each, within 1.3 with eight;
  if none is clipped, and no share of the work is above its bound, the result is the exact sum to
  the bit.

Norms are of a segment, for nobody sees the whole vector. So a replica that lies in one layer alone
is seen there, and clipped nowhere else.

All points that are looked at are mixtures of the means, so their inner products (one product of
matrices) are all that is needed of the vectors until the last sum. From these on everything is
rounded once or added up exactly, so equal products give equal factors on every machine.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from client.compute.aggregation.kept import Kept, combined, weights

RADIUS = 1.25
LEFT_OUT = 2.0
ITERATIONS = 20  # honest replicas take two or three; a mixture of a few points costs nothing
_ROUNDING = 1e-6  # share of the usual norm; smaller distances count as 0
_CHUNK = 1 << 16  # numbers that are looked at in fp64 at once


class CentredClipping(Kept):
    """See the module."""

    def robust(self, sums: Sequence[Tensor], microbatches: Sequence[int]) -> Tensor:
        """Return the sum of the contributions, each times what clipping leaves of it."""
        factors = clipping(inner_products(sums), microbatches)
        return combined(self._size, sums, factors)


def inner_products(vectors: Sequence[Tensor]) -> Tensor:
    """Return those of r vectors (n,) with each other, (r, r) fp64."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for pieces in zip(*(torch.split(each, _CHUNK) for each in vectors), strict=True):
        wide = torch.stack(pieces).double()  # (r, chunk)
        total += wide @ wide.T
    return total


def clipping(
    products: Tensor,
    microbatches: Sequence[int],
    radius: float = RADIUS,
    left_out: float = LEFT_OUT,
) -> list[float]:
    """Return the factors of r contributions in the result.

    Args:
        products: their inner products, (r, r) fp64.
        microbatches: that each is the sum of.
        radius: distance from which on a mean is clipped, in median distances.
        left_out: distance beyond which it is left out.
    """
    counts = torch.tensor(microbatches, dtype=torch.float64)  # (r,)
    weight = torch.tensor(weights(microbatches), dtype=torch.float64)
    means = products / torch.outer(counts, counts)  # (r, r), inner products of the means
    least = _ROUNDING * (means.diagonal() * weight).sqrt().median()
    mixture = torch.zeros_like(counts)
    mixture[_pairs(means, weight).median(dim=1).values.argmin()] = 1.0
    for _ in range(ITERATIONS):
        distance = _distances(means, mixture) * weight.sqrt()
        unit = torch.maximum(distance.median(), least)
        kept = torch.where(distance > radius * unit, radius * unit / distance, 1.0)
        kept[distance > left_out * unit] = 0.0
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


AGGREGATION = CentredClipping

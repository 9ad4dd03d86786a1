"""Centred clipping of the sums of buckets, in integers, so that all replicas make the same of them.

Where sums are secret, no owner can compare contributions: every replica opens the sums of a
segment's buckets and clips them itself. Their results have to be equal to the bit on unlike
machines. So inner products are added up exactly, factors are rounded to `_UNIT`-ths, and the result
is an integer of the ring's scale.

- Of three buckets and more, one whose mean is far from most others' is clipped or left out
  (`aggregation.centred_clipping`). If none is, and shares are even, the result is the exact sum.
- Of two buckets none is the majority: the norm of a mean is at most the other's.
- A bucket without a microbatch has only error feedback, and is left out.

Norms are of a segment. Holds no state. Shapes: B buckets, N numbers of a segment, K blocks of 128.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from client.compute.aggregation.centred_clipping import clipping
from client.compute.aggregation.kept import bounding
from client.compute.public_scale import BLOCK, pieces

_UNIT = 1 << 16
_MOST = (1 << 19) - 1
"""Of the result: 16 times the ring. Its squared norm is added up in 64 bits."""


def clipped_sum(sums: Tensor, scale: Tensor, microbatches: Sequence[int]) -> Tensor:
    """Return the sum of the buckets, each times what clipping leaves of it, (N,) int32.

    Args:
        sums: of the buckets, (B, N) int16.
        scale: exponents of the blocks' powers of two, (K,) int32.
        microbatches: of each bucket.
    """
    total = torch.zeros(sums.shape[1], dtype=torch.int64)
    for numbers, factor in zip(sums, factors(sums, scale, microbatches), strict=True):
        total += numbers.to(torch.int64) * round(factor * _UNIT)
    total = (total + _UNIT // 2) >> (_UNIT.bit_length() - 1)
    return total.clamp_(-_MOST, _MOST).to(torch.int32)


def factors(sums: Tensor, scale: Tensor, microbatches: Sequence[int]) -> list[float]:
    """Return what is left of each bucket's sum; see `clipped_sum`."""
    counted = [place for place, count in enumerate(microbatches) if count]
    counts, found = [microbatches[place] for place in counted], [1.0] * len(counted)
    if len(counted) > 1:
        products = exact_products(sums[counted], scale)
        if len(counted) == 2:
            found = bounding(products.diagonal().sqrt().tolist(), counts, usual=0.0)
        else:
            found = clipping(products, counts)
    left = dict(zip(counted, found, strict=True))
    return [left.get(place, 0.0) for place in range(len(microbatches))]


def exact_products(sums: Tensor, scale: Tensor) -> Tensor:
    """Return the inner products of the buckets' sums (B, N) int16, (B, B) fp64.

    They are added up as integers and rounded once, so they are the same on every machine.
    """
    buckets, size, lowest = *sums.shape, int(scale.min())
    exponents = int(scale.max()) - lowest + 1
    totals = torch.zeros(exponents, buckets, buckets, dtype=torch.int64)
    for rows, at in pieces(size):
        part = sums[:, at].reshape(buckets, rows, -1).transpose(0, 1).to(torch.float64)
        # 128 products below 2^30 are a whole number below 2^53, in whatever order they are added
        of_blocks = torch.bmm(part, part.transpose(1, 2)).to(torch.int64)  # (rows, B, B)
        of = scale[at.start // BLOCK : -(-at.stop // BLOCK)] - lowest
        totals.index_add_(0, of, of_blocks)
    sizes = list(enumerate(totals.tolist(), start=lowest))
    return torch.tensor(
        [
            [
                math.fsum(math.ldexp(of[i][j], 2 * exponent) for exponent, of in sizes)
                for j in range(buckets)
            ]
            for i in range(buckets)
        ],
        dtype=torch.float64,
    )

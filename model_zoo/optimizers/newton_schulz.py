"""Newton-Schulz iteration whose bits are the same on every machine.

It pushes the singular values of a matrix towards 1: U S V^T becomes U S' V^T with S' between 0.7
and 1.2 (Jordan et al., 2024, "Muon"). It consists of matrix products, and every library adds their
terms up in an order of its own: with other numbers of threads, on another processor or GPU, the
last bits are others. Replicas must not differ in a single bit. So no sum may round.

Therefore every factor is rounded to a multiple of 2^-25 first. A product of two factors is then a
multiple of 2^-50. A sum of such products is, by Cauchy and Schwarz, at most the product of the
norms of a row and a column; these are at most 2.9 and 1.3 here, so every partial sum, in any order,
is below 2^3 and has at most 53 bits: float64 holds it exactly, fused or not. All else is single
operations on numbers, which IEEE 754 rounds one way only. Divisions by a number are multiplications
by its inverse, which some devices make of them anyway.

That needs float64, which is half as fast as float32 on processors, and much slower on GPUs for
games. Factors have more bits than in bfloat16, in which others run this iteration.
"""

import math

import torch
from torch import Tensor

ITERATIONS = 5
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_UNIT = 2.0**25
_NORM_UNIT = 2.0**21  # a row of 2^20 squares below 2^42 can be summed in int64
_ABOVE_NORM = 1.02


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the matrix with its singular values near 1, (R, C) float64; zeros stay zeros.

    ``matrix`` (R, C) fp32 is finite, with at most 2^20 columns.
    """
    x = _normalised(matrix)
    wide = x if x.shape[0] <= x.shape[1] else x.T  # the smaller Gram matrix
    _round(wide)
    for _ in range(ITERATIONS):
        product = _factor(wide) @ wide
        _round(wide.mul_(_LINEAR).add_(product))
        del product  # before the next one is made
    return x


def roughly_orthogonal(matrix: Tensor) -> Tensor:
    """Return about the same, (R, C), where no other machine has to make the same bits: in fp32, or
    in bfloat16 on a GPU.

    ``matrix`` (R, C) fp32 is finite.
    """
    norm = torch.linalg.vector_norm(matrix).clamp_min_(torch.finfo(matrix.dtype).tiny)
    x = matrix / (norm * _ABOVE_NORM)
    if x.is_cuda:
        x = x.bfloat16()
    wide: Tensor = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        factor = torch.addmm(gram, gram, gram, beta=_CUBIC, alpha=_QUINTIC)
        wide = torch.addmm(wide, factor, wide, beta=_LINEAR)
    return wide if x.shape[0] <= x.shape[1] else wide.T


def _factor(wide: Tensor) -> Tensor:
    """Return what the cubic and the quintic term multiply, (R, R)."""
    gram = _round(wide @ wide.T)
    squared = _round(gram @ gram)
    return _round(gram.mul_(_CUBIC).add_(squared.mul_(_QUINTIC)))


def _round(x: Tensor) -> Tensor:
    """Round to multiples of the unit, in place."""
    return x.mul_(_UNIT).round_().mul_(1 / _UNIT)


def _normalised(matrix: Tensor) -> Tensor:
    """Return the matrix in float64, over a bit more than its Frobenius norm."""
    x = matrix.double()
    peak = float(matrix.abs().amax())
    if peak == 0.0:
        return x
    x.mul_(2.0 ** -math.frexp(peak)[1])  # exact; the largest is in [0.5, 1) now
    steps = (x * _NORM_UNIT).round_().to(torch.int64)
    rows: list[int] = steps.square_().sum(dim=1).tolist()  # integers: any order
    norm = math.sqrt(math.fsum(rows)) / _NORM_UNIT
    return x.mul_(1 / (norm * _ABOVE_NORM))

"""Conditions tensors with outliers for few bits: means of channels, and a Hadamard rotation.

Everything is a function of the tensor alone, not of a running average over earlier ones, because a
replica that recomputes a microbatch must produce the same bytes. For the same reason a processor's
sums have a fixed order, or are made in fp64 where they are rounded to bf16 afterwards. No state.

Shapes: R rows, C channels, P channels padded to whole blocks of 128.
"""

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute.payload import BLOCK

_ROTATION, _ROWS = 64, 128
"""Numbers of a group, and rows that are widened at once."""


def is_exact(numbers: Tensor) -> bool:
    """Whether sums of these are made in a fixed order. On a GPU that would take a hundred small
    kernels, for last bits that its passes do not share with a processor's anyway."""
    return numbers.is_cpu


def tree_sums(rows: Tensor) -> Tensor:
    """Return the sums (R, 1) of rows (R, C), C a power of two, added up as a tree of halves."""
    while rows.shape[1] > 1:
        left, right = torch.chunk(rows, 2, dim=1)
        rows = left + right
    return rows


def channel_means(rows: Tensor) -> Tensor:
    """Mean of each channel of (R, C), as bf16 (P,)."""
    if is_exact(rows):
        parts = [part.sum(dim=0, dtype=torch.float64) for part in torch.split(rows, _ROWS)]
        sums = torch.stack(parts).sum(dim=0)
    else:
        sums = rows.sum(dim=0)
    means = sums.div_(len(rows)).to(torch.bfloat16)
    lacking = -len(means) % BLOCK
    return pad(means, (0, lacking)) if lacking else means


def rotate(numbers: Tensor) -> Tensor:
    """Multiply each group of 64 of a contiguous tensor by Sylvester's Hadamard matrix, orthogonal
    and symmetric, so its own inverse, by the fast transform: six times sums and differences of the
    two halves, interleaved. Groups are columns meanwhile, so that what is added lies side by
    side."""
    groups = numbers.reshape(-1, _ROTATION)
    if not is_exact(numbers):
        return (groups @ _hadamard(numbers.device)).view(numbers.shape)
    columns = groups.t().contiguous()  # (64, G)
    pairs = torch.empty_like(columns)
    for _ in range(_ROTATION.bit_length() - 1):
        upper, lower = columns.chunk(2)  # (32, G) each
        torch.add(upper, lower, out=pairs[0::2])
        torch.sub(upper, lower, out=pairs[1::2])
        columns, pairs = pairs, columns
    return columns.t().contiguous().mul_(1 / math.sqrt(_ROTATION)).view(numbers.shape)


@cache
def _hadamard(device: torch.device) -> Tensor:
    """Return the matrix of `rotate`, (64, 64)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _ROTATION:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div_(math.sqrt(_ROTATION)).to(device)

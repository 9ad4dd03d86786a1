"""Conditions tensors with outliers for eight bits: per-channel prescale and Hadamard rotation.

A cheap probe of about 1 % of the rows predicts the signal-to-noise ratio of plain S8 and decides.
Everything is a function of the tensor alone, not of a running average over earlier ones, because a
replica that recomputes a microbatch must produce the same bytes. For the same reason sums have a
fixed order on processors: trees. No state.

Shapes: R rows, C channels, P channels padded to whole blocks of 128.
"""

import math
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute.payload import BLOCK, Direction, padded_width

Number: TypeAlias = float | Tensor

FORWARD_SNR_DB = 38.0
FORWARD_PEAK_TO_RMS = 30.0
BACKWARD_SNR_DB = 35.0

HAIR = 10 ** (1e-3 / 10)
"""So near a threshold, 1e-3 dB, the last bits of the numbers decide: sums that other threads make
differ by 1e-6 at most, which is 1e-5 dB."""

# Bounds of a prescale factor, wide enough for any activation and safe to multiply with a scale.
SMALLEST_FACTOR = 2.0**-60
LARGEST_FACTOR = 2.0**60

_ROTATION = 64
_FEWEST_ROWS = 16
_CACHED = 1 << 16  # elements that stay in the cache between two passes


def needed(rows: Tensor, direction: Direction, wanted: bool | None = None) -> bool | Tensor:
    """Whether plain S8 of rows (R, C) would lose too much: activations, to outlier channels,
    gradients, to single large numbers. A GPU's answer is a number on it that nobody has waited for.

    ``wanted`` decides within a hair of the thresholds, where other numbers of threads may decide
    either way; None: nobody.
    """
    step = max(1, len(rows) // max(_FEWEST_ROWS, len(rows) // 100))
    count = -(-len(rows) // step) * padded_width(rows.shape)
    found = sampled_sums(rows, step)
    if wanted is None:
        return _lacks(found, count, direction, 1.0)
    surely, maybe = (_lacks(found, count, direction, times) for times in (1 / HAIR, HAIR))
    return maybe if wanted else surely


def _lacks(
    found: tuple[Number, Number, Number], count: int, direction: Direction, times: float
) -> bool | Tensor:
    """Whether the expected signal-to-noise ratio of plain S8 is below its threshold or, of
    activations, the peak over the root mean square is above its own; thresholds are ``times`` as
    easily missed. Rows that are zero or not finite lack nothing: the codec deals with them.

    ``found`` is as `sampled_sums` returns it, of ``count`` numbers.
    """
    signal, peaks, highest = found
    snr_db = FORWARD_SNR_DB if direction == "forward" else BACKWARD_SNR_DB
    of_noise = BLOCK / (12 * 127**2) * times * 10 ** (snr_db / 10)  # uniform error, step peak/127
    lacks = (signal > 0) & (signal < peaks * of_noise)
    if direction == "forward":
        lacks |= highest * highest * (count * times / FORWARD_PEAK_TO_RMS**2) > signal
    return lacks


def sampled_sums(rows: Tensor, step: int) -> tuple[Number, Number, Number]:
    """Over every step-th row: sum of squares, sum of the squared peaks of blocks, highest peak;
    of a GPU's rows as numbers on it.

    Whole rows are sampled: outlier channels sit at the same place in every row.
    """
    blocks = blocks_of(rows[::step])
    of_blocks = blocks.abs().amax(dim=1)
    if not is_exact(rows):
        return blocks.square().sum(), of_blocks.square().sum(), of_blocks.amax()
    both = torch.stack([tree_sums(blocks.square()).view(-1), of_blocks]).double()
    both[1].square_()
    signal, peaks = both.cumsum(dim=1)[:, -1].tolist()  # one after the other
    return signal, peaks, math.sqrt(float(both[1].amax()))


def blocks_of(rows: Tensor) -> Tensor:
    """Return rows (R, C), each padded to whole blocks: (N, 128)."""
    lacking = -rows.shape[1] % BLOCK
    return (pad(rows, (0, lacking)) if lacking else rows).reshape(-1, BLOCK)


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


def channel_factors(rows: Tensor) -> Tensor:
    """Mean magnitude of each channel of (R, C), as bf16 (P,), never zero."""
    sums = channel_sums(rows.abs())
    means = sums.div_(len(rows)).clamp_(SMALLEST_FACTOR, LARGEST_FACTOR).to(torch.bfloat16)
    lacking = -len(means) % BLOCK
    return pad(means, (0, lacking), value=SMALLEST_FACTOR) if lacking else means


def channel_means(rows: Tensor) -> Tensor:
    """Mean of each channel of (R, C), as bf16 (P,)."""
    means = channel_sums(rows).div_(len(rows)).to(torch.bfloat16)
    lacking = -len(means) % BLOCK
    return pad(means, (0, lacking)) if lacking else means


def nearest_factors(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return bf16 factors (P,): another replica's of the same tensor where they are one step of
    bf16 from ours at most, else ours. Sums that differ in their last bits round either way."""
    apart = theirs.view(torch.int16).int() - ours.view(torch.int16).int()
    return torch.where(apart.abs() <= 1, theirs, ours)


def channel_sums(rows: Tensor) -> Tensor:
    """Sum of each channel of (R, C); where sums are exact, added up as a tree of neighbouring
    rows."""
    if not is_exact(rows):
        return rows.sum(dim=0)
    height = 1 << max(1, _CACHED // rows.shape[1]).bit_length() - 1  # whole branches of the tree
    return _tree(torch.stack([_tree(branch) for branch in torch.split(rows, height)]))


def _tree(rows: Tensor) -> Tensor:
    while len(rows) > 1:
        even = len(rows) // 2 * 2
        pairs = rows[:even:2] + rows[1:even:2]
        rows = pairs if even == len(rows) else torch.cat([pairs, rows[even:]])
    return rows[0]


def rotate(numbers: Tensor) -> Tensor:
    """Multiply each group of 64 of a contiguous tensor by the Hadamard matrix; its own inverse.

    Sylvester's matrix, orthogonal and symmetric, by the fast transform: six times sums and
    differences of the two halves, interleaved.
    """
    groups = numbers.reshape(-1, _ROTATION)
    if not is_exact(numbers):
        return (groups @ _hadamard(numbers.device)).view(numbers.shape)
    for _ in range(_ROTATION.bit_length() - 1):
        upper, lower = groups.chunk(2, dim=1)  # (G, 32) each
        pairs = groups.new_empty(len(groups), _ROTATION // 2, 2)
        torch.add(upper, lower, out=pairs[:, :, 0])
        torch.sub(upper, lower, out=pairs[:, :, 1])
        groups = pairs.view(-1, _ROTATION)
    return groups.mul_(1 / math.sqrt(_ROTATION)).view(numbers.shape)


@cache
def _hadamard(device: torch.device) -> Tensor:
    """Return the matrix of `rotate`, (64, 64)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _ROTATION:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div_(math.sqrt(_ROTATION)).to(device)

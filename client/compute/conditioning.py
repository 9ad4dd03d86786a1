"""Conditions tensors with outliers for eight bits: per-channel prescale and Hadamard rotation.

A cheap probe of about 1 % of the rows predicts the signal-to-noise ratio of plain S8 and decides.
Everything is a function of the tensor alone, not of a running average over earlier ones, because a
replica that recomputes a microbatch must produce the same bytes. For the same reason sums have a
fixed order: trees, which the C kernel adds in the same order. No state.

Shapes: R rows, C channels, P channels padded to whole blocks of 128.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute import native
from client.compute.payload import BLOCK, padded_width

FORWARD_SNR_DB = 38.0
FORWARD_PEAK_TO_RMS = 30.0
BACKWARD_SNR_DB = 35.0

HAIR_DB = 1e-3
"""So near a threshold the last bits of the numbers decide: sums that other threads make differ by
1e-6 at most, which is 1e-5 dB."""

# Bounds of a prescale factor, wide enough for any activation and safe to multiply with a scale.
SMALLEST_FACTOR = 2.0**-60
LARGEST_FACTOR = 2.0**60

_ROTATION = 64
_FEWEST_ROWS = 16
_CACHED = 1 << 16  # elements that stay in the cache between two passes


def needs_prescale(rows: Tensor, wanted: bool | None = None) -> bool:
    """Whether plain S8 of activations (R, C) would lose too much to outlier channels.

    ``wanted`` decides within a hair of the thresholds, where other numbers of threads may decide
    either way; None: nobody.
    """
    snr_db, peak_to_rms = _probe(rows)
    lacks_db = (
        FORWARD_SNR_DB - snr_db,
        20 * math.log10(max(peak_to_rms, 1e-9) / FORWARD_PEAK_TO_RMS),
    )
    return _decided(max(lacks_db), wanted)


def needs_rotation(rows: Tensor, wanted: bool | None = None) -> bool:
    """Whether plain S8 of gradients (R, C) would lose too much to single large elements.

    ``wanted`` decides within a hair of the threshold; None: nobody.
    """
    return _decided(BACKWARD_SNR_DB - _probe(rows)[0], wanted)


def _decided(lacks_db: float, wanted: bool | None) -> bool:
    if wanted is not None and abs(lacks_db) <= HAIR_DB:
        return wanted
    return lacks_db > 0


def _probe(rows: Tensor) -> tuple[float, float]:
    """Expected signal-to-noise ratio in dB of plain S8, and peak over root mean square.

    Whole rows are sampled: outlier channels sit at the same place in every row. Tensors that
    are zero or not finite pass as perfect; the kernel deals with them.
    """
    step = max(1, len(rows) // max(_FEWEST_ROWS, len(rows) // 100))
    sums = native.probe if native.takes(rows) else sampled_sums
    signal, peaks, highest = sums(rows, step)
    noise = peaks * BLOCK / (12 * 127**2)  # uniform error, step peak/127
    if not (0 < signal < math.inf and 0 < noise < math.inf):
        return math.inf, 0.0
    rms = math.sqrt(signal / (-(-len(rows) // step) * padded_width(rows.shape)))
    return 10 * math.log10(signal / noise), highest / rms


def sampled_sums(rows: Tensor, step: int) -> tuple[float, float, float]:
    """Over every step-th row: sum of squares, sum of the squared peaks of blocks, highest peak."""
    blocks = pad(rows[::step], (0, -rows.shape[1] % BLOCK)).reshape(-1, BLOCK)
    squares = tree_sums(blocks.square())
    both = torch.stack([squares.view(-1), blocks.abs().amax(dim=1)]).cpu().double()
    both[1].square_()
    signal, peaks = both.cumsum(dim=1)[:, -1].tolist()  # one after the other
    return signal, peaks, math.sqrt(float(both[1].amax()))


def tree_sums(rows: Tensor) -> Tensor:
    """Return the sums (R, 1) of rows (R, C), C a power of two, added up as a tree of halves."""
    while rows.shape[1] > 1:
        left, right = torch.chunk(rows, 2, dim=1)
        rows = left + right
    return rows


def channel_factors(rows: Tensor) -> Tensor:
    """Mean magnitude of each channel of (R, C), as bf16 (P,), never zero."""
    totals = rows.new_zeros(padded_width(rows.shape))
    channels = totals[: rows.shape[1]]
    if native.takes(rows):
        native.channel_sums(rows, channels)
    else:
        channels.copy_(channel_sums(rows))
    # by a number on the device: a GPU multiplies with the reciprocal of one on the host
    return (
        totals.div_(totals.new_full((), len(rows)))
        .clamp_(SMALLEST_FACTOR, LARGEST_FACTOR)
        .to(torch.bfloat16)
    )


def nearest_factors(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return bf16 factors (P,): another replica's of the same tensor where they are one step of
    bf16 from ours at most, else ours. Sums that differ in their last bits round either way."""
    apart = theirs.view(torch.int16).int() - ours.view(torch.int16).int()
    return torch.where(apart.abs() <= 1, theirs, ours)


def channel_sums(rows: Tensor) -> Tensor:
    """Sum of magnitudes of each channel of (R, C), added up as a tree of neighbouring rows."""
    height = 1 << max(1, _CACHED // rows.shape[1]).bit_length() - 1  # whole branches of the tree
    return _tree(torch.stack([_tree(branch.abs()) for branch in torch.split(rows, height)]))


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
    for _ in range(_ROTATION.bit_length() - 1):
        upper, lower = groups.chunk(2, dim=1)  # (G, 32) each
        pairs = groups.new_empty(len(groups), _ROTATION // 2, 2)
        torch.add(upper, lower, out=pairs[:, :, 0])
        torch.sub(upper, lower, out=pairs[:, :, 1])
        groups = pairs.view(-1, _ROTATION)
    return groups.mul_(1 / math.sqrt(_ROTATION)).view(numbers.shape)

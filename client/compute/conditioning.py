"""What makes outlier tensors fit into eight bits: per-channel prescale and Hadamard rotation.

A cheap probe of about 1 % of the rows predicts the signal-to-noise ratio of plain S8 and decides.
Everything is a function of the tensor alone, not of a running average over earlier ones: whoever
recomputes a microbatch has to produce the same bytes. Holds no state.

Source: RECIPES.md, "S8". Shapes: R rows, C channels (a multiple of 128).
"""

import math
from functools import cache

import torch
from torch import Tensor

from client.compute.payload import BLOCK

FORWARD_SNR_DB = 38.0
FORWARD_PEAK_TO_RMS = 30.0
BACKWARD_SNR_DB = 35.0

# Bounds of a prescale factor, wide enough for any activation and safe to multiply with a scale.
SMALLEST_FACTOR = 2.0**-60
LARGEST_FACTOR = 2.0**60

_ROTATION = 64
_FEWEST_ROWS = 16
_CACHED = 1 << 18  # elements that stay in the cache between two passes


def needs_prescale(rows: Tensor) -> bool:
    """Whether plain S8 of activations (R, C) would lose too much to outlier channels."""
    snr_db, peak_to_rms = _probe(rows)
    return snr_db < FORWARD_SNR_DB or peak_to_rms > FORWARD_PEAK_TO_RMS


def needs_rotation(rows: Tensor) -> bool:
    """Whether plain S8 of gradients (R, C) would lose too much to single large elements."""
    return _probe(rows)[0] < BACKWARD_SNR_DB


def _probe(rows: Tensor) -> tuple[float, float]:
    """Expected signal-to-noise ratio in dB of plain S8, and peak over root mean square.

    Whole rows are sampled: outlier channels sit at the same place in every row. Tensors that
    are zero or not finite pass as perfect; the kernel deals with them.
    """
    sampled = max(_FEWEST_ROWS, len(rows) // 100)
    blocks = rows[:: max(1, len(rows) // sampled)].reshape(-1, BLOCK)
    peaks = blocks.abs().amax(dim=1)
    signal = float(blocks.square().sum())
    noise = float(peaks.square().sum()) * BLOCK / (12 * 127**2)  # uniform error, step peak/127
    if not (0 < signal < math.inf and 0 < noise < math.inf):
        return math.inf, 0.0
    rms = math.sqrt(signal / blocks.numel())
    return 10 * math.log10(signal / noise), float(peaks.amax()) / rms


def channel_factors(rows: Tensor) -> Tensor:
    """Mean magnitude of each channel of (R, C), as bf16 (C,), never zero."""
    totals = rows.new_zeros(rows.shape[1])
    for chunk in torch.split(rows, max(1, _CACHED // rows.shape[1])):
        totals += chunk.abs().sum(dim=0)
    return totals.div_(len(rows)).clamp_(SMALLEST_FACTOR, LARGEST_FACTOR).to(torch.bfloat16)


def rotate(numbers: Tensor) -> Tensor:
    """Multiply each group of 64 of a contiguous tensor by the Hadamard matrix; its own inverse."""
    matrix = _hadamard().to(numbers.device)
    return torch.mm(numbers.view(-1, _ROTATION), matrix).view(numbers.shape)


@cache
def _hadamard() -> Tensor:
    """Sylvester's construction, (64, 64), orthogonal and symmetric."""
    matrix = torch.ones(1, 1)
    while len(matrix) < _ROTATION:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(_ROTATION)

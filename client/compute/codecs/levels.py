"""Q2, Q3 and Q4: vectors in a few bits a number, in chunks of 4,096 numbers.

A number becomes one of its chunk's levels, which lie on both sides of zero alike:

- Q2: the mean of the magnitudes above the chunk's mean magnitude, or of the others: two scales.
- Q3, Q4: the eight and sixteen levels that lose least of Gaussian numbers (J. Max, Quantizing for
  minimum distortion, 1960, table I; borders lie midway), times the chunk's root mean square.

Each level is the mean of what becomes it, so what is sent is the shorter vector: of Gaussian
numbers' squares, 12, 3.5 and 1 % stay behind for error feedback.

The bytes are the same everywhere, as those of `blocks`: sums are trees, one operation of torch
follows the other, and nothing waits for a device.

Shapes: K chunks, S scales of a chunk, M levels on one side.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from client.compute.codecs.bits import pack, unpack
from client.compute.codecs.blocks import LARGEST_SCALE, Coded
from client.compute.conditioning import tree_sums
from client.compute.payload import SCALE_BYTES
from model_zoo.specs.codec import CODECS, Codec

SMALLEST_SCALE = 2.0**-50
"""Below it numbers are zero for training, and their squares near the end of fp32; sent as zero."""

_SMALLEST_BITS, _LARGEST_BITS = (
    torch.tensor([SMALLEST_SCALE, LARGEST_SCALE], dtype=torch.bfloat16).view(torch.int16).tolist()
)

EIGHT: Final = (0.2451, 0.7560, 1.3439, 2.1520)
SIXTEEN: Final = (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7326)


class Levels(ABC):
    """One of the codecs, with so many ``bits`` of a number and ``scales`` of a chunk."""

    def __init__(self, codec: Codec, bits: int, scales: int) -> None:
        self._block, self._bits, self._scales = CODECS[codec].block, bits, scales

    @abstractmethod
    def _quantised(self, magnitudes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales (K, S) of magnitudes (K, 4096), of which ``counts`` (K, 1) are given
        and the rest are zero, and which level each of them has, (K, 4096) uint8."""

    @abstractmethod
    def _levels(self, scales: Tensor) -> Tensor:
        """Return the levels (K, M) that scales (K, S) stand for, ascending."""

    def encode(self, blocks: Tensor, lacking: int, _chances: Tensor | None) -> Coded:
        """See `Blocks`."""
        counts = blocks.new_full((len(blocks), 1), blocks.shape[1])
        counts[-1] -= lacking
        scales, codes = self._quantised(blocks.abs(), counts)
        codes |= (blocks < 0).view(torch.uint8) << self._bits - 1
        sent = torch.where(scales < SMALLEST_SCALE, 0.0, scales).to(torch.bfloat16)
        return torch.cat([sent.view(torch.uint8), pack(codes, self._bits)], dim=1), scales.amax()

    def decode(self, coded: Tensor) -> Coded:
        """See `Blocks`."""
        size = SCALE_BYTES * self._scales
        sent = coded[:, :size].contiguous().view(torch.int16)  # the bits of bf16
        levels = self._levels(sent.view(torch.bfloat16).float())
        codes = unpack(coded[:, size:], self._bits, self._block)
        both = torch.cat([levels, -levels], dim=1)
        return both.gather(1, codes.long()), _are_good(sent)


class TwoMeans(Levels):
    """Q2."""

    def _quantised(self, magnitudes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        total = tree_sums(magnitudes)
        above = magnitudes > total / counts
        high_sum, high_count = tree_sums(magnitudes * above), above.sum(dim=1, keepdim=True)
        low = (total - high_sum) / (counts - high_count).clamp_(min=1)
        high = high_sum / high_count.clamp_(min=1)
        # where all magnitudes are one, none is above
        scales = torch.cat([low, torch.maximum(low, high)], dim=1)
        return scales, above.view(torch.uint8)

    def _levels(self, scales: Tensor) -> Tensor:
        return scales


class Gaussian(Levels):
    """Q3 and Q4, by their ``levels`` of the positive side, for a root mean square of 1."""

    def __init__(self, codec: Codec, bits: int, levels: Sequence[float]) -> None:
        super().__init__(codec, bits, scales=1)
        self._of_one = torch.tensor(levels)
        self._borders = [(low + high) / 2 for low, high in pairwise(levels)]

    def _quantised(self, magnitudes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        rms = (tree_sums(magnitudes.square()) / counts).sqrt_()
        scales = rms.to(torch.bfloat16).float()
        level = torch.zeros_like(magnitudes, dtype=torch.uint8)
        for border in self._borders:
            level += (magnitudes > scales * border).view(torch.uint8)
        return scales, level

    def _levels(self, scales: Tensor) -> Tensor:
        return scales * self._of_one.to(scales.device)


def _are_good(sent: Tensor) -> Tensor:
    """Whether scales (K, S), as the bits of bf16, are zero or within the bounds, and ascend.

    As integers bf16 numbers that are not negative keep their order, with NaN above all."""
    allowed = (sent == 0) | ((sent >= _SMALLEST_BITS) & (sent <= _LARGEST_BITS))
    ascending = torch.le(sent[:, :1], sent[:, -1:])
    return torch.logical_and(allowed.all(), ascending.all())

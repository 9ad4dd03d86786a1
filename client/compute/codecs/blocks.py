"""S8 and S4: numbers in eight or four bits, with a bf16 scale for every 128.

Between stages groups of 64 are rotated first (`conditioning.rotate`), so that blocks are nearly
Gaussian whatever was in them. Activations are sent less the mean of their channel over the tensor,
which goes before the body: what all tokens have in common would be a part of what is rounded. The
scale is rounded *up* to bf16 and the block is quantised with the rounded scale, so nothing ever
clips. Numbers are rounded to the nearest value, gradients in four bits at random, so that on
average nothing is lost, over microbatches that are summed. Chance is a hash of a key and of the
number's place, all of it integers, so who computes the same again makes the same bytes, on any
processor.

The body is block after block: the scale, and then 128 numbers, in four bits with eight added to
each. Every number is computed by the same operations in the same order on all devices, one
operation of torch after the other, so that no compiler fuses a product with a sum. NaN and infinity
survive into the scales. Nothing waits for a device: whether anything has to be refused is a number
on it, which the caller reads once at the end. Holds no state.

Shapes: N blocks.
"""

import struct
from hashlib import blake2b

import torch
from torch import Tensor

from client.compute.codecs.bits import pack, unpack
from client.compute.payload import BLOCK, SCALE_BYTES

# Bounds of a scale. Below the smaller one a number is zero for training, and its reciprocal would
# overflow; above the larger one training has diverged or the sender lies.
SMALLEST_SCALE = 2.0**-100
LARGEST_SCALE = 2.0**40
LARGEST_VALUE = 127
_BIAS = 8  # of four bits
_KEY = struct.Struct("<2I")
_CHANCES = 1 << 16
_32_BITS = (1 << 32) - 1
_SPREAD = 0x9E3779B1  # of neighbouring places over 32 bits: 2^32 over the golden ratio
_MIXER = 0x45D9F3B  # T. Mueller's; a product with 32 bits fits into int64


def chunk_of(device: torch.device) -> int:
    """Return the numbers to code at a time: 512 KiB for each thread stay in the cache of its core;
    enough for a large GPU, and 256 MiB of scratch at most."""
    return torch.get_num_threads() << 17 if device.type == "cpu" else 1 << 25


def rounding_key(swarm: str, step: int, microbatch: int, boundary: int) -> bytes:
    """Return the key of a gradient's rounding: whoever computes it again has the same one."""
    named = f"{swarm} {step} {microbatch} {boundary}"
    return blake2b(named.encode(), digest_size=_KEY.size).digest()


Coded = tuple[Tensor, Tensor]
"""Blocks in one form, and a number on the device that says whether they may be in it."""


class Blocks:
    """S8 and S4, by the bits of a number. Codes blocks each by itself, and changes nothing."""

    def __init__(self, bits: int) -> None:
        self._bits, self._largest = bits, (1 << bits - 1) - 1

    def encode(self, blocks: Tensor, _lacking: int, chances: Tensor | None) -> Coded:
        """Return the bytes of blocks, and the largest of their scales: above `LARGEST_SCALE`, or
        NaN, the tensor has to be refused.

        Args:
            blocks: (N, block) fp32.
            lacking: zeros behind the numbers of the last one.
            chances: by which numbers are rounded, of `chances_of`; None: to the nearest.
        """
        scratch = blocks.abs()
        peaks = scratch.amax(dim=1, keepdim=True)  # NaN if any is
        scales = peaks.mul_(1 / self._largest).clamp_(min=SMALLEST_SCALE)
        bits = scales.view(torch.int32).add(0xFFFF).bitwise_and_(~0xFFFF)  # up to a bf16
        blocks = torch.mul(blocks, bits.view(torch.float32).reciprocal(), out=scratch)
        values = blocks.round_() if chances is None else self._rounded_by_chance(blocks, chances)
        sent = (bits >> 16).to(torch.int16).view(torch.uint8)
        return torch.cat([sent, self._packed(values)], dim=1), scales.amax()

    def decode(self, coded: Tensor) -> Coded:
        """Return the numbers (N, block) in bytes from outside, (N, block_bytes) uint8, and whether
        they are good, for they count only then: a scale outside the allowed range is not, nor a
        value that no encoder writes."""
        scales, values = self._parts(coded)
        low, high = torch.aminmax(scales)  # both are NaN if any is
        good = (low >= SMALLEST_SCALE) & (high <= LARGEST_SCALE)
        good &= values.amin() >= -self._largest
        return values.mul_(scales), good

    def _rounded_by_chance(self, blocks: Tensor, chances: Tensor) -> Tensor:
        """Round numbers (N, 128) up where what is above the value below is more than chance."""
        blocks.clamp_(-self._largest, self._largest)  # a reciprocal may be a last bit too large
        below = blocks.floor()
        return below.add_(blocks.sub_(below).mul_(_CHANCES).gt_(chances))

    def _packed(self, values: Tensor) -> Tensor:
        """Return the bytes of values (N, 128)."""
        if self._bits == 8:
            return values.to(torch.int8).view(torch.uint8)
        return pack(values.add_(_BIAS).to(torch.uint8), self._bits)

    def _parts(self, coded: Tensor) -> tuple[Tensor, Tensor]:
        """Cut what was sent into scales (N, 1) and values (N, 128), fp32."""
        scales = coded[:, :SCALE_BYTES].contiguous().view(torch.bfloat16).float()
        packed = coded[:, SCALE_BYTES:]
        if self._bits == 8:
            return scales, packed.view(torch.int8).float()
        return scales, unpack(packed, self._bits, BLOCK).float().sub_(_BIAS)


def chances_of(first: int, count: int, key: bytes, device: torch.device) -> Tensor:
    """Return for each place of blocks (N, 128), N = ``count``, one of `_CHANCES` numbers: 1/2, 3/2
    and so on, fp32. A word of 32 bits makes two. They follow from the key and from the index of the
    ``first`` block in the tensor."""
    one, other = _KEY.unpack(key)
    blocks = torch.arange(first, first + count, device=device).unsqueeze(1)
    of_block = _mixed(_mixed(blocks ^ one) ^ other)
    places = torch.arange(BLOCK // 2, device=device) * _SPREAD & _32_BITS
    words = _mixed(of_block ^ places)
    return torch.cat([words & _CHANCES - 1, words >> 16], dim=1).float().add_(0.5)


def _mixed(words: Tensor) -> Tensor:
    """Return a permutation of words of 32 bits, in int64, in which each bit depends on all."""
    for _ in range(2):
        words = (words >> 16).bitwise_xor_(words).mul_(_MIXER).bitwise_and_(_32_BITS)
    return (words >> 16).bitwise_xor_(words)

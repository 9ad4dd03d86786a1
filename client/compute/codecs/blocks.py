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

Shapes: R rows, C channels, N blocks of 128 in all, whole ones for each row.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from client.compute.codecs.bits import pack, unpack
from client.compute.conditioning import blocks_of, rotate
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


class Blocks:
    """One of the codecs.

    Args:
        bits: of a number.
    """

    def __init__(self, bits: int) -> None:
        self._bits, self._largest = bits, (1 << bits - 1) - 1
        self._block_bytes = SCALE_BYTES + BLOCK * bits // 8

    def encode(
        self,
        rows: Tensor,
        chunk: int,
        rotated: bool,
        means: Tensor | None,
        key: bytes | None,
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Quantise rows (R, C) fp32.

        Args:
            rows: the numbers.
            chunk: about so many at a time.
            rotated: whether groups are rotated first.
            means: of channels, fp32 (C,), which are taken out before.
            key: of `rounding_key`, by which numbers are rounded at random; None: to the nearest.

        Yields:
            Where a piece belongs in the body, its bytes (uint8, on the device), and the largest of
            its scales: above `LARGEST_SCALE`, or NaN, the tensor has to be refused.
        """
        for place, part in self._pieces(rows, chunk, whole=means is not None):
            part = part if means is None else part - means
            blocks = rotate(blocks_of(part)) if rotated else blocks_of(part)
            scratch = blocks.abs()
            peaks = scratch.amax(dim=1, keepdim=True)  # NaN if any is
            scales = peaks.mul_(1 / self._largest).clamp_(min=SMALLEST_SCALE)
            bits = scales.view(torch.int32).add(0xFFFF).bitwise_and_(~0xFFFF)  # up to a bf16
            blocks = torch.mul(blocks, bits.view(torch.float32).reciprocal(), out=scratch)
            if key is None:
                values = blocks.round_()
            else:
                first = place.start // self._block_bytes
                chances = _chances(first, len(blocks), key, rows.device)
                values = self._rounded_by_chance(blocks, chances)
            sent = (bits >> 16).to(torch.int16).view(torch.uint8)
            yield place, torch.cat([sent, self._packed(values)], dim=1).view(-1), scales.amax()

    def decode(
        self,
        body: Tensor,
        rows: Tensor,
        chunk: int,
        rotated: bool,
        means: Tensor | None,
    ) -> Tensor:
        """Read a body from outside, uint8, into rows (R, C), about so many numbers at a time, and
        add the means of channels, fp32 (C,).

        Returns:
            Whether it is good, as a number on the device; what was read counts only if it is. A
            scale outside the allowed range, or a value that no encoder writes, is not.
        """
        good = torch.ones((), dtype=torch.bool, device=rows.device)
        for place, part in self._pieces(rows, chunk, whole=means is not None):
            scales, values = self._parts(body[place])
            low, high = torch.aminmax(scales)  # both are NaN if any is
            good &= (low >= SMALLEST_SCALE) & (high <= LARGEST_SCALE)
            good &= values.amin() >= -self._largest
            blocks = values.mul_(scales)
            if rotated:
                blocks = rotate(blocks)
            found = blocks.view(len(part), -1)[:, : part.shape[1]]
            if means is None:
                part.copy_(found)
            else:
                torch.add(found, means, out=part)
        return good

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

    def _parts(self, body: Tensor) -> tuple[Tensor, Tensor]:
        """Cut a body into scales (N, 1) and values (N, 128), fp32."""
        blocks = body.view(-1, self._block_bytes)
        scales = blocks[:, :SCALE_BYTES].contiguous().view(torch.bfloat16).float()
        packed = blocks[:, SCALE_BYTES:]
        if self._bits == 8:
            return scales, packed.view(torch.int8).float()
        return scales, unpack(packed, self._bits, BLOCK).float().sub_(_BIAS)

    def _pieces(self, rows: Tensor, chunk: int, *, whole: bool) -> Iterator[tuple[slice, Tensor]]:
        """Cut rows (R, C) into some whole rows each, or a single row into some whole blocks, unless
        it is to stay ``whole``; yield where their bytes are, and the rows."""
        per_row, at = -(-rows.shape[1] // BLOCK), 0
        if whole or len(rows) > 1:
            parts = torch.split(rows, max(1, chunk // (per_row * BLOCK)))
        else:
            parts = torch.split(rows, max(1, chunk // BLOCK) * BLOCK, dim=1)
        for part in parts:
            blocks = len(part) * -(-part.shape[1] // BLOCK)
            end = at + blocks * self._block_bytes
            yield slice(at, end), part
            at = end


def _chances(first: int, count: int, key: bytes, device: torch.device) -> Tensor:
    """Return for each place of blocks (N, 128), N = ``count``, one of `_CHANCES` numbers: 1/2, 3/2
    and so on, fp32. A word of 32 bits makes two.

    Args:
        first: index of the first block in the tensor.
        count: of the blocks.
        key: what else they follow from.
        device: where they are.
    """
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

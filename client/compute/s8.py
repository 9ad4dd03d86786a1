"""The S8 kernel in torch: blocks of 128 fp32 numbers to int8 with one bf16 scale, and back.

It is the reference for the C kernel (`native`), which makes the same bytes faster, and for what
GPUs do (`device_s8`). It works without a compiler, and its errors name the reason why a tensor or
payload is refused.

Source: RECIPES.md, "S8". The scale is rounded *up* to bf16 and the block is quantised with the
rounded scale, so nothing ever clips. NaN and infinity survive into the block maximum, so one
look at the scales finds them all. On the CPU the work goes through reused scratch in chunks of
eight tiles: 2 MiB stay in the cache, and the overhead per call of torch stays small.

State: scratch memory, one per thread. May not read anything but its arguments.

Shapes: N blocks, K tiles, L blocks per tile.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from client.compute.errors import CodecError, PoisonedTensor
from client.compute.payload import BLOCK, BLOCK_BYTES, TILE_BLOCKS, TILE_BYTES

# Bounds of a scale. Below the smaller one a number is zero for training, and its reciprocal would
# overflow; above the larger one training has diverged or the sender lies.
SMALLEST_SCALE = 2.0**-100
LARGEST_SCALE = 2.0**40
LARGEST_VALUE = 127

_CHUNK_TILES = 8
_CHUNK_BLOCKS = _CHUNK_TILES * TILE_BLOCKS
_GROUP_CHUNKS = 16  # chunks that share the arithmetic on their scales
_GROUP_BLOCKS = _GROUP_CHUNKS * _CHUNK_BLOCKS


class _Scratch(threading.local):
    """Working memory of one thread: 2 MiB of numbers and three vectors of scales."""

    def __init__(self) -> None:
        self.numbers = torch.empty(_CHUNK_BLOCKS, BLOCK)
        self.scales = torch.empty(_GROUP_BLOCKS)
        self.bits = torch.empty(_GROUP_BLOCKS, dtype=torch.int32)
        self.reciprocals = torch.empty(_GROUP_BLOCKS, 1)


_scratch = _Scratch()


@dataclass(frozen=True, slots=True)
class Region:
    """A run of equally long tiles: blocks of numbers and their wire form, on any device."""

    blocks: Tensor  # (N, 128) fp32
    scales: Tensor  # (K, L) int16, the bits of bf16
    values: Tensor  # (K, L, 128) int8

    def groups(self) -> Iterator["Region"]:
        """Pieces small enough for the scratch vectors."""
        yield from map(
            Region,
            torch.split(self.blocks, _GROUP_BLOCKS),
            torch.split(self.scales, _GROUP_BLOCKS // TILE_BLOCKS),
            torch.split(self.values, _GROUP_BLOCKS // TILE_BLOCKS),
        )


def regions(blocks: Tensor, body: Tensor) -> Iterator[Region]:
    """The whole tiles, then the short one at the end; body (130 N,) is uint8."""
    tiles, tail = divmod(len(blocks), TILE_BLOCKS)
    whole = tiles * TILE_BLOCKS
    if tiles:
        yield _region(blocks[:whole], body[: tiles * TILE_BYTES], tiles, TILE_BLOCKS)
    if tail:
        yield _region(blocks[whole:], body[tiles * TILE_BYTES :], 1, tail)


def _region(blocks: Tensor, body: Tensor, tiles: int, length: int) -> Region:
    rows = body.view(tiles, length * BLOCK_BYTES)
    scales = rows.view(torch.int16)[:, :length]  # (K, L)
    values = rows.view(torch.int8)[:, 2 * length :]
    return Region(blocks, scales, values.view(tiles, length, BLOCK))


def encode_blocks(blocks: Tensor, body: Tensor) -> None:
    """Quantise blocks (N, 128) fp32 into body (130 N,) uint8, both on the CPU.

    Raises:
        PoisonedTensor: a block holds NaN, infinity or more than 127 * 2^40.
    """
    for region in regions(blocks, body):
        for group in region.groups():
            _encode_group(group)


def _encode_group(group: Region) -> None:
    count = len(group.blocks)
    scales = _scratch.scales[:count]
    chunks = torch.split(group.blocks, _CHUNK_BLOCKS)
    for chunk, peaks in zip(chunks, torch.split(scales, _CHUNK_BLOCKS), strict=True):
        torch.amax(torch.abs(chunk, out=_numbers(chunk)), dim=1, out=peaks)
    bits = _round_up(scales, _scratch.bits[:count])
    group.scales.copy_((bits >> 16).view(group.scales.shape))
    reciprocals = _scratch.reciprocals[:count]
    torch.reciprocal(bits.view(torch.float32).unsqueeze(1), out=reciprocals)
    wire = torch.split(group.values, _CHUNK_TILES)
    for chunk, factors, values in zip(
        chunks, torch.split(reciprocals, _CHUNK_BLOCKS), wire, strict=True
    ):
        numbers = torch.mul(chunk, factors, out=_numbers(chunk)).round_()
        values.copy_(numbers.view(values.shape))


def _round_up(peaks: Tensor, bits: Tensor) -> Tensor:
    """Turn block maxima (N,) in place into scales; their bits rounded up to bf16, as fp32 bits."""
    scales = peaks.mul_(1 / 127).clamp_(min=SMALLEST_SCALE)
    if not bool(scales.amax() <= LARGEST_SCALE):  # false for NaN as well
        raise PoisonedTensor("tensor holds NaN, infinity or an absurd magnitude")
    torch.add(scales.view(torch.int32), 0xFFFF, out=bits)
    return bits.bitwise_and_(~0xFFFF)


def _numbers(chunk: Tensor) -> Tensor:
    return _scratch.numbers[: len(chunk)]


def decode_blocks(body: Tensor, blocks: Tensor) -> None:
    """Read body (130 N,) uint8 from outside into blocks (N, 128) fp32, both on the CPU.

    Raises:
        CodecError: a scale is not finite, not positive or outside the allowed range; or a value is
            -128, which no encoder writes.
    """
    for region in regions(blocks, body):
        for group in region.groups():
            _decode_group(group)


def _decode_group(group: Region) -> None:
    scales = _scratch.scales[: len(group.blocks)]
    scales.view(group.scales.shape).copy_(group.scales.view(torch.bfloat16))
    check_scales(scales, SMALLEST_SCALE, LARGEST_SCALE)
    for numbers, factors, values in zip(
        torch.split(group.blocks, _CHUNK_BLOCKS),
        torch.split(scales.unsqueeze(1), _CHUNK_BLOCKS),
        torch.split(group.values, _CHUNK_TILES),
        strict=True,
    ):
        if bool(values.amin() < -LARGEST_VALUE):
            raise CodecError("a value is below those that are sent")
        numbers.view(values.shape).copy_(values)
        numbers.mul_(factors)


def check_scales(scales: Tensor, smallest: float, largest: float) -> None:
    """Refuse factors from outside that are NaN or not within [smallest, largest].

    Raises:
        CodecError: one of them is not.
    """
    low, high = torch.aminmax(scales)  # both are NaN if any factor is
    if not (bool(low >= smallest) and bool(high <= largest)):
        raise CodecError(f"scales reach from {float(low):.3g} to {float(high):.3g}")

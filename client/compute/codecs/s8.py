"""S8 in torch: blocks of 128 fp32 numbers to int8 with one bf16 scale, and back.

The numbers are coded where they are; only bytes cross to the host and back. Every number is
computed by the same operations in the same order on all devices, one operation of torch after the
other, so that no compiler fuses a product with a sum. Nothing waits for a device: whether anything
has to be refused is a number on it, which the caller reads once at the end. Holds no state.

The scale is rounded *up* to bf16 and the block is quantised with the
rounded scale, so nothing ever clips. NaN and infinity survive into the block maximum, so one
look at the scales finds them all.

Shapes: R rows, C channels, P channels padded to whole blocks of 128; N blocks in all, K tiles,
L blocks per tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute.conditioning import rotate
from client.compute.errors import CodecError
from client.compute.payload import BLOCK, BLOCK_BYTES, TILE_BLOCKS, TILE_BYTES

# Bounds of a scale. Below the smaller one a number is zero for training, and its reciprocal would
# overflow; above the larger one training has diverged or the sender lies.
SMALLEST_SCALE = 2.0**-100
LARGEST_SCALE = 2.0**40
LARGEST_VALUE = 127
_TILE = TILE_BLOCKS * BLOCK


@dataclass(frozen=True, slots=True)
class _Region:
    """A run of equally long tiles: blocks of numbers and their wire form, on any device."""

    blocks: Tensor  # (N, 128) fp32
    scales: Tensor  # (K, L) int16, the bits of bf16
    values: Tensor  # (K, L, 128) int8


def chunk_of(device: torch.device) -> int:
    """Return the numbers to code at a time: 2 MiB stay in a processor's cache; enough for a large
    GPU, and 256 MiB of scratch at most."""
    return 8 * _TILE if device.type == "cpu" else 1 << 25


def encode(
    rows: Tensor, reciprocals: Tensor | None, *, rotated: bool | Tensor, chunk: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Quantise rows (R, C) fp32 piece by piece.

    Args:
        rows: the numbers.
        reciprocals: of the channels, applied first, fp32 (P,).
        rotated: whether to rotate groups of 64 first; maybe as a number on the device.
        chunk: numbers at a time.

    Yields:
        Where a piece belongs in the body (130 N,), its bytes (uint8, on the device), and the
        largest of its scales: above `LARGEST_SCALE`, or NaN, the tensor has to be refused.
    """
    whole_rows = reciprocals is not None or rotated is not False
    for place, part in _pieces(rows, chunk, whole_rows=whole_rows):
        padded = pad(part, (0, -part.shape[1] % BLOCK)) if part.shape[1] % BLOCK else part
        if reciprocals is not None:
            padded = padded * reciprocals
        blocks = padded.reshape(-1, BLOCK)
        if rotated is not False:
            plain, blocks = blocks, rotate(blocks)
            if isinstance(rotated, Tensor):
                blocks = torch.where(rotated, blocks, plain)
        body = torch.empty(len(blocks) * BLOCK_BYTES, dtype=torch.uint8, device=rows.device)
        largest = [_encode_region(region) for region in _regions(blocks, body)]
        yield place, body, largest[0] if len(largest) == 1 else torch.stack(largest).amax()


def _encode_region(region: _Region) -> Tensor:
    low, high = torch.aminmax(region.blocks, dim=1)  # both are NaN if any is
    scales = torch.maximum(low.neg_(), high).mul_(1 / 127).clamp_(min=SMALLEST_SCALE)
    bits = scales.view(torch.int32).add(0xFFFF).bitwise_and_(~0xFFFF)
    reciprocals = bits.view(torch.float32).reciprocal().unsqueeze(1)
    values = torch.mul(region.blocks, reciprocals).round_()
    region.scales.copy_((bits >> 16).view(region.scales.shape))
    region.values.copy_(values.view(region.values.shape))
    return scales.amax()


def decode(
    body: Tensor, rows: Tensor, factors: Tensor | None, *, rotated: bool, chunk: int
) -> Tensor:
    """Read a body from outside into rows (R, C); what was read counts only if it is good.

    Args:
        body: (130 N,) uint8 on the device.
        rows: fp32, written to.
        factors: of the channels, applied afterwards, fp32 (P,).
        rotated: whether to rotate groups of 64 afterwards.
        chunk: numbers at a time.

    Returns:
        Whether it is good, as a number on the device: a scale outside the allowed range, or a value
        of -128, which no encoder writes, is not.
    """
    good = list[Tensor]()
    for place, part in _pieces(rows, chunk, whole_rows=factors is not None or rotated):
        width = -(-part.shape[1] // BLOCK) * BLOCK
        direct = width == part.shape[1] and part.is_contiguous() and not rotated
        padded = part if direct else part.new_empty(len(part), width)
        blocks = padded.view(-1, BLOCK)
        for region in _regions(blocks, body[place]):
            good.append(_decode_region(region))
        if factors is not None:
            padded.mul_(factors)
        elif rotated:
            padded = rotate(blocks).view(padded.shape)
        if not direct:
            part.copy_(padded[:, : part.shape[1]])
    return good[0] if len(good) == 1 else torch.stack(good).all()


def _decode_region(region: _Region) -> Tensor:
    scales = region.scales.view(torch.bfloat16).float()  # (K, L)
    low, high = torch.aminmax(scales)  # both are NaN if any is
    region.blocks.view(region.values.shape).copy_(region.values)
    region.blocks.mul_(scales.view(-1, 1))
    sane = (low >= SMALLEST_SCALE) & (high <= LARGEST_SCALE)
    return sane & (region.values.amin() >= -LARGEST_VALUE)


def refuse(body: Tensor) -> None:
    """Say why a body (130 N,) uint8 is not good.

    Raises:
        CodecError: with the reason.
    """
    blocks = torch.empty(len(body) // BLOCK_BYTES, BLOCK, device="meta")
    for region in _regions(blocks, body):
        check_scales(region.scales.view(torch.bfloat16).float(), SMALLEST_SCALE, LARGEST_SCALE)
    raise CodecError("a value is below those that are sent")


def check_scales(scales: Tensor, smallest: float, largest: float) -> None:
    """Refuse factors from outside that are NaN or not within [smallest, largest].

    Raises:
        CodecError: one of them is not.
    """
    low, high = torch.aminmax(scales)  # both are NaN if any factor is
    if not (bool(low >= smallest) and bool(high <= largest)):
        raise CodecError(f"scales reach from {float(low):.3g} to {float(high):.3g}")


def _regions(blocks: Tensor, body: Tensor) -> Iterator[_Region]:
    """The whole tiles, then the short one at the end; body (130 N,) is uint8."""
    tiles, tail = divmod(len(blocks), TILE_BLOCKS)
    whole = tiles * TILE_BLOCKS
    if tiles:
        yield _region(blocks[:whole], body[: tiles * TILE_BYTES], tiles, TILE_BLOCKS)
    if tail:
        yield _region(blocks[whole:], body[tiles * TILE_BYTES :], 1, tail)


def _region(blocks: Tensor, body: Tensor, tiles: int, length: int) -> _Region:
    rows = body.view(tiles, length * BLOCK_BYTES)
    scales = rows.view(torch.int16)[:, :length]  # (K, L)
    values = rows.view(torch.int8)[:, 2 * length :]
    return _Region(blocks, scales, values.view(tiles, length, BLOCK))


def _pieces(rows: Tensor, chunk: int, *, whole_rows: bool) -> Iterator[tuple[slice, Tensor]]:
    """Cut rows (R, C) so that each piece begins with a tile of the body; yield where its bytes are
    there, and the piece. A single long row is cut as well, unless ``whole_rows`` are needed."""
    count, width = rows.shape
    per_row = -(-width // BLOCK)
    if count > 1 or whole_rows:
        tile_rows = TILE_BLOCKS // math.gcd(TILE_BLOCKS, per_row)  # make whole tiles
        step = max(1, chunk // (per_row * BLOCK) // tile_rows) * tile_rows
        parts = [rows[first : first + step] for first in range(0, count, step)]
    else:
        step = max(1, chunk // _TILE) * _TILE
        parts = [rows[:, first : first + step] for first in range(0, width, step)]
    at = 0
    for part in parts:
        blocks = len(part) * -(-part.shape[1] // BLOCK)
        yield slice(at * BLOCK_BYTES, (at + blocks) * BLOCK_BYTES), part
        at += blocks

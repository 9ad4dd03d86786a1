"""S8 in torch on the device where the numbers are: only bytes cross to the host and back.

Every number is computed by the same operations in the same order as in `s8`, `conditioning` and
the C kernel, one operation of torch after the other, so that no compiler fuses a product with a
sum: the bytes are the same. Nothing waits for the device: whether anything has to be refused is a
number on it, which the caller reads once at the end. Holds no state.

Shapes: R rows, C channels, P channels padded to whole blocks of 128; N blocks in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from client.compute import s8
from client.compute.payload import BLOCK, BLOCK_BYTES, TILE_BLOCKS

CHUNK = 1 << 25
"""Numbers at a time: enough for a large GPU, and 256 MiB of scratch at most."""
_ROTATION = 64


def encode(
    rows: Tensor, reciprocals: Tensor | None, *, rotated: bool, chunk: int = CHUNK
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Quantise rows (R, C) fp32 piece by piece.

    Args:
        rows: the numbers.
        reciprocals: of the channels, applied first, fp32 (P,).
        rotated: whether to rotate groups of 64 first.
        chunk: numbers at a time.

    Yields:
        Where a piece belongs in the body (130 N,), its bytes (uint8, on the device), and the
        largest of its scales: above `s8.LARGEST_SCALE`, or NaN, the tensor has to be refused.
    """
    for place, part in _pieces(rows, chunk, whole_rows=reciprocals is not None or rotated):
        padded = pad(part, (0, -part.shape[1] % BLOCK)) if part.shape[1] % BLOCK else part
        if reciprocals is not None:
            padded = padded * reciprocals
        blocks = padded.reshape(-1, BLOCK)
        if rotated:
            blocks = rotate(blocks)
        body = torch.empty(len(blocks) * BLOCK_BYTES, dtype=torch.uint8, device=rows.device)
        largest = [_encode_region(region) for region in s8.regions(blocks, body)]
        yield place, body, torch.stack(largest).amax()


def _encode_region(region: s8.Region) -> Tensor:
    low, high = torch.aminmax(region.blocks, dim=1)  # both are NaN if any is
    scales = torch.maximum(low.neg_(), high).mul_(1 / 127).clamp_(min=s8.SMALLEST_SCALE)
    bits = scales.view(torch.int32).add(0xFFFF).bitwise_and_(~0xFFFF)
    reciprocals = bits.view(torch.float32).reciprocal().unsqueeze(1)
    values = torch.mul(region.blocks, reciprocals).round_()
    region.scales.copy_((bits >> 16).view(region.scales.shape))
    region.values.copy_(values.view(region.values.shape))
    return scales.amax()


def decode(
    body: Tensor, rows: Tensor, factors: Tensor | None, *, rotated: bool, chunk: int = CHUNK
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
    good = torch.ones((), dtype=torch.bool, device=rows.device)
    for place, part in _pieces(rows, chunk, whole_rows=factors is not None or rotated):
        width = -(-part.shape[1] // BLOCK) * BLOCK
        direct = width == part.shape[1] and part.is_contiguous() and not rotated
        padded = part if direct else part.new_empty(len(part), width)
        blocks = padded.view(-1, BLOCK)
        for region in s8.regions(blocks, body[place]):
            good &= _decode_region(region)
        if factors is not None:
            padded.mul_(factors)
        elif rotated:
            padded = rotate(blocks).view(padded.shape)
        if not direct:
            part.copy_(padded[:, : part.shape[1]])
    return good


def _decode_region(region: s8.Region) -> Tensor:
    scales = region.scales.view(torch.bfloat16).float()  # (K, L)
    low, high = torch.aminmax(scales)  # both are NaN if any is
    region.blocks.view(region.values.shape).copy_(region.values)
    region.blocks.mul_(scales.view(-1, 1))
    sane = (low >= s8.SMALLEST_SCALE) & (high <= s8.LARGEST_SCALE)
    return sane & (region.values.amin() >= -s8.LARGEST_VALUE)


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
        tile = TILE_BLOCKS * BLOCK
        step = max(1, chunk // tile) * tile
        parts = [rows[:, first : first + step] for first in range(0, width, step)]
    at = 0
    for part in parts:
        blocks = len(part) * -(-part.shape[1] // BLOCK)
        yield slice(at * BLOCK_BYTES, (at + blocks) * BLOCK_BYTES), part
        at += blocks


def rotate(blocks: Tensor) -> Tensor:
    """As `conditioning.rotate`, in six large steps instead of many small ones that stay in a
    processor's cache."""
    groups = blocks.reshape(-1, _ROTATION)
    for _ in range(_ROTATION.bit_length() - 1):
        upper, lower = groups.chunk(2, dim=1)  # (G, 32) each
        pairs = groups.new_empty(len(groups), _ROTATION // 2, 2)
        torch.add(upper, lower, out=pairs[:, :, 0])
        torch.sub(upper, lower, out=pairs[:, :, 1])
        groups = pairs.view(-1, _ROTATION)
    return groups.mul_(1 / math.sqrt(_ROTATION)).view(blocks.shape)

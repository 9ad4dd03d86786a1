"""S4: tensors between stages in four bits a number, with a bf16 scale for every 128.

Activations are sent less the mean of their channel over the tensor, which goes before the body:
what all tokens have in common would be a part of what is rounded. Groups of 64 are always rotated
(`conditioning.rotate`), so that blocks are nearly Gaussian whatever was in them; then they are
quantised as in `s8`, to -7..7. Activations are rounded to the nearest value. Gradients are rounded
at random, so that on average nothing is lost, over microbatches that are summed. Chance is a hash
of a key and of the number's place, all of it integers, so who computes the same again makes the
same bytes, on any processor.

The body is block after block: the scale, and then 128 numbers of four bits, eight added to each.
Nothing waits for a device. Holds no state.

Shapes: R rows, C channels, N blocks of 128 in all, whole ones for each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from client.compute.codecs.bits import pack, unpack
from client.compute.codecs.s8 import LARGEST_SCALE, SMALLEST_SCALE, check_scales
from client.compute.conditioning import blocks_of, rotate
from client.compute.errors import CodecError
from client.compute.payload import SCALE_BYTES
from model_zoo.specs.codec import CODECS

BLOCK, BLOCK_BYTES = CODECS["s4"].block, CODECS["s4"].block_bytes
LARGEST_VALUE = 7
_BIAS, _BITS = 8, 4
_KEY = struct.Struct("<2I")
_CHANCES = 1 << 16
_32_BITS = (1 << 32) - 1
_SPREAD = 0x9E3779B1  # of neighbouring places over 32 bits: 2^32 over the golden ratio
_MIXER = 0x45D9F3B  # T. Mueller's; a product with 32 bits fits into int64


def rounding_key(swarm: str, step: int, microbatch: int, boundary: int) -> bytes:
    """Return the key of a gradient's rounding: whoever computes it again has the same one."""
    named = f"{swarm} {step} {microbatch} {boundary}"
    return blake2b(named.encode(), digest_size=_KEY.size).digest()


def encode(rows: Tensor, key: bytes | None, chunk: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Quantise rows (R, C) fp32, about so many numbers at a time.

    Args:
        rows: the numbers.
        key: of `rounding_key`; None: round to the nearest value.
        chunk: numbers at a time.

    Yields:
        Where a piece belongs in the body, its bytes (uint8, on the device), and the largest of its
        scales: above `LARGEST_SCALE`, or NaN, the tensor has to be refused.
    """
    for place, part in _pieces(rows, chunk):
        blocks = rotate(blocks_of(part))
        peaks = blocks.abs().amax(dim=1, keepdim=True)  # NaN if any is
        scales = peaks.mul_(1 / LARGEST_VALUE).clamp_(min=SMALLEST_SCALE)
        bits = scales.view(torch.int32).add(0xFFFF).bitwise_and_(~0xFFFF)  # up to a bf16
        blocks *= bits.view(torch.float32).reciprocal()
        if key is None:
            values = blocks.round_()
        else:
            first = place.start // BLOCK_BYTES
            values = _rounded_by_chance(blocks, _chances(first, len(blocks), key, rows.device))
        codes = values.add_(_BIAS).to(torch.uint8)
        sent = (bits >> 16).to(torch.int16).view(torch.uint8)
        yield place, torch.cat([sent, pack(codes, _BITS)], dim=1).view(-1), scales.amax()


def _rounded_by_chance(blocks: Tensor, chances: Tensor) -> Tensor:
    """Round numbers (N, 128) up where what is above the value below is more than chance."""
    blocks.clamp_(-LARGEST_VALUE, LARGEST_VALUE)  # a reciprocal may be a last bit too large
    below = blocks.floor()
    return below.add_(blocks.sub_(below).mul_(_CHANCES).gt_(chances))


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


def decode(body: Tensor, rows: Tensor, chunk: int) -> Tensor:
    """Read a body from outside (66 N,) uint8 into rows (R, C), about so many numbers at a time.

    Returns:
        Whether it is good, as a number on the device; what was read counts only if it is. A scale
        outside the allowed range, or a value of -8, which no encoder writes, is not.
    """
    good = torch.ones((), dtype=torch.bool, device=rows.device)
    for place, part in _pieces(rows, chunk):
        scales, packed = _parts(body[place])
        codes = unpack(packed, _BITS, BLOCK)
        low, high = torch.aminmax(scales)  # both are NaN if any is
        good &= (low >= SMALLEST_SCALE) & (high <= LARGEST_SCALE)
        good &= codes.amin() >= _BIAS - LARGEST_VALUE
        blocks = rotate(codes.float().sub_(_BIAS).mul_(scales))
        part.copy_(blocks.view(len(part), -1)[:, : part.shape[1]])
    return good


def refuse(body: Tensor) -> None:
    """Say why a body (66 N,) uint8 is not good.

    Raises:
        CodecError: with the reason.
    """
    check_scales(_parts(body)[0], SMALLEST_SCALE, LARGEST_SCALE)
    raise CodecError("a value is below those that are sent")


def _parts(body: Tensor) -> tuple[Tensor, Tensor]:
    """Cut a body into scales (N, 1) fp32 and packed numbers (N, 64)."""
    blocks = body.view(-1, BLOCK_BYTES)
    scales = blocks[:, :SCALE_BYTES].contiguous().view(torch.bfloat16).float()
    return scales, blocks[:, SCALE_BYTES:]


def _pieces(rows: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Cut rows (R, C) into some whole rows each; yield where their bytes are, and the rows."""
    per_row, at = -(-rows.shape[1] // BLOCK), 0
    for part in torch.split(rows, max(1, chunk // (per_row * BLOCK))):
        end = at + len(part) * per_row * BLOCK_BYTES
        yield slice(at, end), part
        at = end

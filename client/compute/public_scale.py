"""Numbers as integers whose sum over the members fits 16 bits, by a scale that all members know.

The scale of a block of 128 is a power of two that follows from the optimizer's second moment, which
is the same at all replicas to the bit: nothing has to be sent, and all decode alike on any machine.
A number beyond the scale is clipped; error feedback brings the rest with a later contribution.

Holds no state. Shapes: N numbers, K blocks of 128 (the last one may be shorter).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from client.compute.errors import PoisonedTensor

BLOCK = 128
_RANGE = 32767  # of the sum over all members
_HEADROOM = 3  # powers of two above the usual size of a block's largest number
_FLOOR = 6  # powers of two below the largest block: a block that was never used can still learn
_FIRST = -5  # the usual size of a token's gradient while nothing is known
_LEAST, _MOST = -40, 60
_CHUNK = 1 << 18  # numbers; a multiple of the block


def largest(members: int) -> int:
    """Return the largest integer that a member may contribute."""
    return _RANGE // members


def exponents(
    second_moment: Tensor, steps_done: int, beta2: float, tokens: int, members: int
) -> Tensor:
    """Return the scale of every block as the exponent of a power of two, (K,) int32.

    Args:
        second_moment: AdamW's, (N,), of the mean gradient of a token.
        steps_done: updates in it.
        beta2: its decay.
        tokens: of the whole step.
        members: that contribute.
    """
    usual = _usual(second_moment, steps_done, beta2)
    bits = largest(members).bit_length() - 1
    return usual + (_HEADROOM + (tokens - 1).bit_length() - bits)


def _usual(second_moment: Tensor, steps_done: int, beta2: float) -> Tensor:
    """The power of two above the usual largest number of every block; only comparisons and integer
    arithmetic, which give the same on every machine."""
    whole = second_moment.numel() // BLOCK * BLOCK
    peaks = second_moment[:whole].view(-1, BLOCK).amax(dim=1)
    if whole < second_moment.numel():
        peaks = torch.cat([peaks, second_moment[whole:].amax().view(1)])
    of_squares = torch.frexp(peaks.cpu()).exponent
    roots = torch.where(peaks.cpu() > 0, (of_squares + 1) >> 1, _LEAST).clamp_(_LEAST, _MOST)
    top = int(roots.max())
    if not steps_done or top == _LEAST:
        return torch.full_like(roots, _FIRST)
    unbiased = math.ceil(-math.log2(1 - beta2**steps_done) / 2)
    return roots.clamp_(min=top - _FLOOR) + unbiased


def to_integers(numbers: Tensor, scale: Tensor, members: int) -> Tensor:
    """Return numbers (N,) as int16, rounded and clipped.

    Raises:
        PoisonedTensor: one is not finite.
    """
    limit, result = largest(members), torch.empty(numbers.numel(), dtype=torch.int16)
    factors = torch.ldexp(torch.ones(len(scale)), -scale)
    for rows, at in pieces(numbers.numel()):
        part = numbers[at].view(rows, -1)
        if not bool(torch.isfinite(part.abs().amax())):
            raise PoisonedTensor("tensor holds NaN or infinity")
        scaled = part * _blocks_of(factors, at)
        result[at].view(rows, -1).copy_(scaled.round_().clamp_(-limit, limit))
    return result


def to_numbers(integers: Tensor, scale: Tensor, out: Tensor) -> float:
    """Decode integers (N,), int16 or below 2^19, into `out`, (N,) fp32; return their squared norm.

    The norm is summed without rounding, so it is the same on every machine.
    """
    factors = torch.ldexp(torch.ones(len(scale)), scale)
    lowest = int(scale.min())
    squares = torch.zeros(int(scale.max()) - lowest + 1, dtype=torch.int64)
    for rows, at in pieces(integers.numel()):
        part = integers[at].view(rows, -1)
        torch.mul(part, _blocks_of(factors, at), out=out[at].view(rows, -1))
        # 128 squares below 2^38 are a whole number below 2^53
        of_blocks = part.to(torch.float64).square_().sum(dim=1).to(torch.int64)
        squares.index_add_(0, _blocks_of(scale, at).view(-1) - lowest, of_blocks)
    sizes = enumerate(squares.tolist(), start=lowest)
    return math.fsum(math.ldexp(square, 2 * exponent) for exponent, square in sizes)


def pieces(count: int) -> Iterator[tuple[int, slice]]:
    """Cut numbers into pieces of whole blocks that stay in the cache, and the rest of the last
    block; yield how many blocks each piece is."""
    whole = count // BLOCK * BLOCK
    for start in range(0, whole, _CHUNK):
        end = min(start + _CHUNK, whole)
        yield (end - start) // BLOCK, slice(start, end)
    if whole < count:
        yield 1, slice(whole, count)


def _blocks_of(by_block: Tensor, at: slice) -> Tensor:
    """The values of a piece's blocks, (rows, 1)."""
    return by_block[at.start // BLOCK : -(-at.stop // BLOCK)].unsqueeze(1)

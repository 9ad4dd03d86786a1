"""Numbers of a few bits, packed into bytes and back, by operations on whole rows.

Bits that are a power of two fill bytes by laying the second half of a row over the first one until
they are full; others are cut into such fields, the largest first and from the lowest bit on.

Shapes: R rows, L numbers a row, a multiple of 8.
"""

import torch
from torch import Tensor

_WIDTHS = (4, 2, 1)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return (R, L bits / 8) of codes (R, L), both uint8; each code is below 2^bits."""
    fields, rest = [], codes
    for width in _fields(bits):
        fields.append(_filled(rest & (1 << width) - 1, width))
        rest = rest >> width
    return torch.cat(fields, dim=1)


def unpack(packed: Tensor, bits: int, length: int) -> Tensor:
    """Return codes (R, L) of L = ``length`` from (R, L bits / 8), both uint8."""
    widths = _fields(bits)
    fields = torch.split(packed, [length * width // 8 for width in widths], dim=1)
    codes, below = packed.new_zeros(len(packed), length), 0
    for field, width in zip(fields, widths, strict=True):
        codes |= _spread(field, width) << below
        below += width
    return codes


def _fields(bits: int) -> list[int]:
    return [width for width in _WIDTHS if bits & width]


def _filled(codes: Tensor, width: int) -> Tensor:
    while width < 8:
        first, second = codes.chunk(2, dim=1)
        codes = first | second << width
        width *= 2
    return codes


def _spread(filled: Tensor, width: int) -> Tensor:
    held = 8
    while held > width:
        held //= 2
        filled = torch.cat([filled & (1 << held) - 1, filled >> held], dim=1)
    return filled

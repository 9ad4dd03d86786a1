"""Frozen matrices in eight or four bits a number, each row on its own.

A row of I numbers is cut into groups of 64, the last one filled up with zeros. A group has a scale,
its largest magnitude in bfloat16, and a code for each number: how many 127ths of the scale it is
(`int8`, a byte), or which of the 16 levels of NormalFloat it is nearest to (`nf4`, half a byte).
Levels are the quantiles of a normal distribution, which weights nearly have. Packing is elementwise
arithmetic and one maximum: every machine makes the same bytes.

Shapes: O rows of I numbers; G = ceil(I / 64) groups. Packed: (O, P) uint8, the scales of a row
before its codes, P = 2 G + 64 G or 2 G + 32 G.
Source of the levels: Dettmers et al., "QLoRA", arXiv 2305.14314, appendix E.
"""

import torch
from torch import Tensor

from model_zoo.specs.architecture import GROUP, PACKED_BITS

_STEPS = 127.0
_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def packed_shape(rows: int, columns: int, kind: str) -> tuple[int, int]:
    """Return the shape of a packed matrix, (O, P)."""
    groups = -(-columns // GROUP)
    return rows, groups * (2 + GROUP * PACKED_BITS[kind] // 8)


def pack(weight: Tensor, kind: str) -> Tensor:
    """Return a matrix (O, I) of any float type as (O, P) uint8."""
    rows, columns = weight.shape
    groups = -(-columns // GROUP)
    filled = torch.nn.functional.pad(weight.float(), (0, groups * GROUP - columns))
    numbers = filled.view(rows, groups, GROUP)
    scales = numbers.abs().amax(-1).to(torch.bfloat16)  # (O, G)
    shares = numbers / scales.float().clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    codes = _steps(shares) if kind == "int8" else _nearest(shares)
    return torch.cat([scales.contiguous().view(torch.uint8), codes.view(rows, -1)], dim=1)


def unpack(packed: Tensor, columns: int, kind: str) -> Tensor:
    """Return a packed matrix (O, P) as (O, I) fp32."""
    rows = packed.shape[0]
    groups = -(-columns // GROUP)
    scales = packed[:, : 2 * groups].contiguous().view(torch.bfloat16).float()
    codes = packed[:, 2 * groups :].contiguous()
    if kind == "int8":
        shares = codes.view(torch.int8).float() / _STEPS
    else:
        levels = torch.tensor(_LEVELS, device=packed.device)
        shares = levels[torch.stack([codes & 15, codes >> 4], dim=-1).int()]
    whole = shares.view(rows, groups, GROUP) * scales.unsqueeze(-1)
    return whole.view(rows, groups * GROUP)[:, :columns]


def _steps(shares: Tensor) -> Tensor:
    """Return shares from -1 to 1 as bytes; rounding the scale may have made them a little more."""
    return (shares * _STEPS).round().clamp(-_STEPS, _STEPS).to(torch.int8).view(torch.uint8)


def _nearest(shares: Tensor) -> Tensor:
    """Return the levels nearest to shares, two to a byte, the first one in its lower half."""
    levels = torch.tensor(_LEVELS, device=shares.device)
    codes = torch.bucketize(shares.contiguous(), (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4

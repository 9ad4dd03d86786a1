"""The S8 kernel in C, where it was built: a faster equivalent of `s8` and `conditioning`.

Both compute every number by the same operations in the same order, so the bytes are identical.
Imports no torch, so that a front end can ask for the kernel's name. State: which instruction set is
used, fixed when this module is loaded.

Shapes: R rows, C channels, P channels padded to whole blocks, N blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client.compute.payload import Buffer

if TYPE_CHECKING:
    from torch import Tensor

try:
    from client.compute import _s8
except ImportError:  # no compiler when this was installed
    VARIANTS: list[str] = []
else:
    VARIANTS = _s8.variants()

KERNEL = VARIANTS[0] if VARIANTS else "torch"
"""The quantiser on the CPU: an instruction set of the C kernel, or torch."""

_BEST = 0


def takes(tensor: Tensor) -> bool:
    """Whether the functions below can work on this tensor."""
    return bool(VARIANTS) and tensor.is_cpu


def encode(rows: Tensor, body: memoryview, factors: Tensor | None, rotated: bool) -> bool:
    """Quantise rows (R, C) into body (130 N,) bytes; False if a number is poisoned.

    Args:
        factors: of the channels, applied first, fp32 (P,).
        rotated: whether to rotate groups of 64 first.

    Raises:
        ValueError: the sizes do not fit together.
    """
    return _s8.encode(_memory(rows), rows.shape[1], body, _optional(factors), rotated, _BEST)


def decode(body: Buffer, rows: Tensor, factors: Tensor | None, rotated: bool) -> bool:
    """Read body (130 N,) from outside into rows (R, C); False if it is refused.

    Args:
        factors: of the channels, applied afterwards, fp32 (P,).
        rotated: whether to rotate groups of 64 afterwards.

    Raises:
        ValueError: the sizes do not fit together.
    """
    return _s8.decode(_memory(rows), rows.shape[1], body, _optional(factors), rotated, _BEST)


def channel_sums(rows: Tensor, totals: Tensor) -> None:
    """Sum of magnitudes of each channel of (R, C) into totals (C,)."""
    _s8.channel_sums(_memory(rows), rows.shape[1], _memory(totals), _BEST)


def probe(rows: Tensor, step: int) -> tuple[float, float, float]:
    """Over every step-th row: sum of squares, sum of the squared peaks of blocks, highest peak."""
    return _s8.probe(_memory(rows), rows.shape[1], step, _BEST)


def _memory(tensor: Tensor) -> memoryview:
    return tensor.numpy().data


def _optional(tensor: Tensor | None) -> memoryview | None:
    return None if tensor is None else _memory(tensor)

"""The tensors that codecs are measured on, and the clock; imports torch alone, for both sides.

Shapes: (B, T, C) as a boundary. ``outlier``: one channel is 60 times as large as the others.
"""

import time
from collections.abc import Callable

import torch

SHAPE = (8, 256, 1024)
CHANNEL = 7
WARM_UP = 3
SOURCES = ("Gaussian", "one channel x60")

Codec = tuple[Callable[[torch.Tensor], object], Callable[[object], torch.Tensor]]
"""Encodes a tensor; decodes what that gave."""


def tensor(source: str) -> torch.Tensor:
    """Return the numbers of a source, the same on both sides."""
    numbers = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    if source != SOURCES[0]:
        numbers[..., CHANNEL] *= 60
    return numbers


def measured(codec: Codec, numbers: torch.Tensor, repeats: int) -> dict[str, object]:
    """Return GB/s of fp32 numbers, in samples, and errors relative to the numbers' norm."""
    encode, decode = codec
    packed = encode(numbers)
    result = decode(packed).view(SHAPE)
    return {
        "encode": _rates(lambda: encode(numbers), numbers.nbytes, repeats),
        "decode": _rates(lambda: decode(packed), numbers.nbytes, repeats),
        "error": _error(result, numbers),
        "error_elsewhere": _error(_without(result), _without(numbers)),
    }


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result - exact).norm() / exact.norm())


def _without(numbers: torch.Tensor) -> torch.Tensor:
    """All channels but the large one."""
    return torch.cat([numbers[..., :CHANNEL], numbers[..., CHANNEL + 1 :]], dim=-1)


def _rates(run: Callable[[], object], size_bytes: int, repeats: int) -> list[float]:
    taken = []
    for _ in range(WARM_UP + repeats):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return [round(size_bytes / seconds / 1e9, 4) for seconds in taken[WARM_UP:]]

"""How large the tensors are that come from neighbouring stages, and which are far from that.

A tensor that the codec lets through may still be ten orders of magnitude too large or too small:
passes on it run away, and what they give spoils others. So its size (log2 of the root mean square)
is held against the median of the newest that were counted, per direction. Only what was counted
teaches, so a tensor that was refused, or that led to nothing, shifts nothing.

Widths: measured against this median over two-stage runs of the preset nanogpt with its warm-up,
honest sizes stay within a factor of 2^1.1; at thirty times its learning rate, where the loss jumps
from 5.5 to 7 and back, within 2^5 (GPT and Llama shapes). The bound is 2^10. It is 2^2 wider for
each stage that the tensor has passed before: what an honest stage has let through and passes on is
not refused by the next one, which would blame the wrong peer. While little is known only what no
model gives is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from client.compute.errors import OutlierTensor
from client.compute.payload import Direction

WINDOW = 64
"""Tensors that say what is usual; the median of so many follows training and ignores a few."""
LEAST = 16
"""Before so many were counted nothing is usual."""
AT_FIRST = 40.0
"""Then the root mean square may be from 2^-40 to 2^40."""
WIDTH = 10.0
WIDER_PER_STAGE = 2.0
MAX_SEEN = 256
"""Tensors of which it is not known yet whether they will be counted."""


class Usual:
    """The sizes of what comes to one stage.

    Args:
        passed: through how many stages the tensors of each direction have come.
    """

    def __init__(self, passed: Mapping[Direction, int]) -> None:
        self._width = {
            direction: WIDTH + WIDER_PER_STAGE * max(0, stages - 1)
            for direction, stages in passed.items()
        }
        self._counted: dict[Direction, deque[float]] = {
            direction: deque(maxlen=WINDOW) for direction in passed
        }
        self._seen: dict[int, dict[Direction, float]] = {}

    def check(self, tensor: Tensor, direction: Direction, microbatch: int) -> None:
        """Check the size of a tensor from another stage against earlier ones.

        Args:
            tensor: the tensor.
            direction: of the boundary.
            microbatch: its id; its size counts as usual after ``count``.

        Raises:
            OutlierTensor: its size is far from the usual one; the payload at place 0 is blamed.
        """
        size = _size(tensor)
        counted = self._counted[direction]
        usual, width = 0.0, AT_FIRST
        if len(counted) >= LEAST:
            usual, width = sorted(counted)[len(counted) // 2], self._width[direction]
        if not abs(size - usual) <= width:
            error = OutlierTensor(f"a tensor of size 2^{size:.0f} where 2^{usual:.0f} is usual")
            error.part = 0
            raise error
        self._seen.setdefault(microbatch, {})[direction] = size
        while len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def count(self, microbatch: int) -> None:
        """A microbatch is counted: what came of it is usual."""
        for direction, size in self._seen.pop(microbatch, {}).items():
            self._counted[direction].append(size)


def _size(tensor: Tensor) -> float:
    """Return log2 of the root mean square; -inf for zeros, inf where squares overflow."""
    norm = float(torch.linalg.vector_norm(tensor))
    return math.log2(norm) - math.log2(tensor.numel()) / 2 if norm > 0 else -math.inf

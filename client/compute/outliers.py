"""Detects tensors from neighbouring stages that are far from the usual size.

A tensor that the codec accepts may still be ten orders of magnitude too large or too small: passes
on it diverge, and their results damage others. So its size (log2 of the root mean square) is
compared with the median of the newest counted ones, per direction. Only counted tensors shift the
median; refused and unused ones do not.

The bound is 2^10, and 2^2 wider for each stage that the tensor has passed before: otherwise a stage
could refuse a tensor that the honest stage before it had accepted, and blame the wrong peer. Before
enough tensors were counted, only sizes that no model produces are refused.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from client.compute.errors import OutlierTensor
from client.compute.payload import Direction
from client.compute.readings import Check

WINDOW = 64
"""Tensors of the median: so many follow training and ignore a few outliers."""
LEAST = 16
"""Counted tensors from which the median is used."""
AT_FIRST = 40.0
"""Before that, the root mean square may be from 2^-40 to 2^40."""
WIDTH = 10.0
WIDER_PER_STAGE = 2.0
MAX_SEEN = 256
"""Most tensors that are not counted yet."""


class OutlierFilter:
    """The sizes of the tensors that one stage receives; ``passed``: stages that those of each
    direction have passed."""

    def __init__(self, passed: Mapping[Direction, int]) -> None:
        self._width = {
            direction: WIDTH + WIDER_PER_STAGE * max(0, stages - 1)
            for direction, stages in passed.items()
        }
        self._counted: dict[Direction, deque[float]] = {
            direction: deque(maxlen=WINDOW) for direction in passed
        }
        self._seen: dict[int, dict[Direction, float]] = {}

    def check(self, tensor: Tensor, direction: Direction, microbatch: int) -> Check[None]:
        """Check the size of a tensor from another stage against earlier ones, when it is judged; it
        enters the median at ``count``.

        Raises:
            OutlierTensor: it is far from the usual one; the payload at place 0 is blamed.
        """
        numel = tensor.numel()

        def judge(norm: Sequence[float]) -> None:
            self._judge(_size(norm[0], numel), direction, microbatch)

        return Check(torch.linalg.vector_norm(tensor).view(1), judge, part=0)

    def _judge(self, size: float, direction: Direction, microbatch: int) -> None:
        counted = self._counted[direction]
        usual, width = 0.0, AT_FIRST
        if len(counted) >= LEAST:
            usual, width = sorted(counted)[len(counted) // 2], self._width[direction]
        if not abs(size - usual) <= width:
            words = f"a tensor of size 2^{size:.0f} where 2^{usual:.0f} is usual"
            raise OutlierTensor(words)
        self._seen.setdefault(microbatch, {})[direction] = size
        while len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def count(self, microbatch: int) -> None:
        """A microbatch is counted: its sizes enter the median."""
        for direction, size in self._seen.pop(microbatch, {}).items():
            self._counted[direction].append(size)


def _size(norm: float, numel: int) -> float:
    """Return log2 of the root mean square; -inf for zeros, inf where squares overflow."""
    return math.log2(norm) - math.log2(numel) / 2 if norm > 0 else -math.inf

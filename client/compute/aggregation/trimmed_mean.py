"""The trimmed mean: of each number, the means of all replicas but those that are extreme in it.

Source: Yin, Chen, Ramchandran, Bartlett, arXiv 1803.01498, definition 2. Of n replicas the k =
max(1, (n - 1) // 3) largest and as many of the smallest values are left out, so that k liars can
move no number beyond what honest replicas have. Each replica counts alike, however many
microbatches it did. Without liars it costs more than centred clipping, for most of what honest
replicas computed is not used; where gradients are skewed it is not an estimate of their mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from client.compute.aggregation.kept import Kept

_CHUNK = 1 << 16  # numbers that are sorted at once


class TrimmedMean(Kept):
    """See the module."""

    def robust(self, sums: Sequence[Tensor], microbatches: Sequence[int]) -> Tensor:
        """Return the trimmed mean of the means, times the step's microbatches."""
        count = len(sums)
        least = max(1, (count - 1) // 3)
        each = torch.tensor(microbatches, dtype=torch.float32)[:, None]
        total = torch.empty(self._size)
        pieces = zip(*(torch.split(one, _CHUNK) for one in (total, *sums)), strict=True)
        for out, *parts in pieces:
            ordered = (torch.stack(parts) / each).sort(dim=0).values  # (r, chunk)
            torch.mean(ordered[least : count - least], dim=0, out=out)
        return total.mul_(sum(microbatches))


AGGREGATION = TrimmedMean

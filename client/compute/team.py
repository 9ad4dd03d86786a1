"""What a pass needs of the other ranks of its group, where all of them run it together.

A stage that is cut over ranks is run by all of them at once, each of its requests by each of them
in the same order. What is decided from a part of a tensor alone would part them, so it is agreed.

Shapes: B sequences, T tokens, C width.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

LEADER = 0


class Team:
    """A process that runs its passes alone.

    Attributes:
        rank, size: its place among those that run passes together, and how many these are.
    """

    rank: int = LEADER
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process makes the versions."""
        return self.rank == LEADER

    def rows(self, count: int) -> slice:
        """Return which of so many sequences this process runs."""
        return slice(0, count)

    def joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """Put slices of the sequences together, those of all ranks: (B, T, C)."""
        return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))

    def agreed(self, fine: bool) -> bool:
        """Return whether it is so at all ranks."""
        return fine

    def summed(self, number: float) -> float:
        """Return the sum of what the ranks have."""
        return number


ALONE = Team()


class Ring(Team):
    """Ranks that run passes together, each a part of the sequences.

    Args:
        rank, size: as in `Team`.
        sequences: B.
        device: of this rank.
    """

    def __init__(self, rank: int, size: int, sequences: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._sequences = sequences

    def rows(self, count: int) -> slice:
        """Return which of so many sequences this rank runs; never none."""
        return self._rows_of(self.rank, count)

    def joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """Put slices of the sequences together, those of all ranks: (B, T, C)."""
        own = super().joined(pieces).detach()
        whole = own.new_empty(self._sequences, *own.shape[1:])
        whole[self.rows(self._sequences)] = own
        for rank in range(self.size):
            dist.broadcast(whole[self._rows_of(rank, self._sequences)], rank)
        return whole

    def agreed(self, fine: bool) -> bool:
        """Return whether it is so at all ranks."""
        verdict = torch.tensor(int(fine), device=self.device)
        dist.all_reduce(verdict, dist.ReduceOp.MIN)
        return bool(verdict)

    def summed(self, number: float) -> float:
        """Return the sum of what the ranks have of the sequences."""
        total = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item()

    def _rows_of(self, rank: int, count: int) -> slice:
        return slice(rank * count // self.size, (rank + 1) * count // self.size)

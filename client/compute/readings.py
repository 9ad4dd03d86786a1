"""What has to be known of numbers on a device, read in one go.

Reading a number of a GPU waits for all that it has to compute. So what depends on such numbers is
stated as a `Check`: the numbers, and a function that judges them once they are read. A pass notes
its checks while it is computed, and reads them together before it counts or answers anything.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from client.compute.errors import blame

T = TypeVar("T")


@dataclass(slots=True)
class Check(Generic[T]):
    """Numbers that are not read yet, and what follows from them.

    Fields:
        numbers: (K,) fp32 on any device; empty where all is known.
        judge: takes them and returns what follows, or raises a `ComputeError`.
        part: the payload of the request that is blamed for an error.
    """

    numbers: Tensor
    judge: Callable[[Sequence[float]], T]
    part: int | None = None
    _found: T | None = None

    def now(self) -> T:
        """Read the numbers and judge them."""
        return self.judged(self.numbers.tolist())

    def judged(self, numbers: Sequence[float]) -> T:
        """Judge the numbers, which were read; return what follows."""
        with nullcontext() if self.part is None else blame(self.part):
            self._found = found = self.judge(numbers)
        return found

    @property
    def found(self) -> T:
        """What followed from it, once it was read."""
        assert self._found is not None
        return self._found


class Readings:
    """The checks of a pass, in the order in which they are judged."""

    def __init__(self) -> None:
        self._noted: list[Check[Any]] = []

    def note(self, check: Check[T]) -> Check[T]:
        """Take a check to be read."""
        self._noted.append(check)
        return check

    def read(self) -> None:
        """Read and judge what was noted since the last time.

        Raises:
            ComputeError: of the first check that fails.
        """
        noted, self._noted = self._noted, []
        unread = [check.numbers for check in noted if check.numbers.numel()]
        numbers = torch.cat(unread).tolist() if unread else []
        at = 0
        for check in noted:
            end = at + check.numbers.numel()
            check.judged(numbers[at:end])
            at = end

"""What has to be known of numbers on a device, read in one go.

Reading a number of a GPU waits for all that it has to compute. So what depends on such numbers is
stated as a `Check`: the numbers, and a function that judges them once they are read. A pass notes
its checks while it is computed, and reads them together before it counts or answers anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from client.compute.errors import blame

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
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

    def now(self) -> T:
        """Read the numbers and judge them."""
        return self._judged(self.numbers.tolist())

    def _judged(self, numbers: Sequence[float]) -> T:
        if self.part is None:
            return self.judge(numbers)
        with blame(self.part):
            return self.judge(numbers)


def known(value: T) -> Check[T]:
    """Return the check of what is known already."""
    return Check(torch.empty(0), lambda _: value)


@dataclass(slots=True)
class Noted(Generic[T]):
    """A check that is read with others."""

    check: Check[T]
    value: T | None = None

    @property
    def found(self) -> T:
        """What followed from it, once it was read."""
        assert self.value is not None
        return self.value


class Readings:
    """The checks of a pass, in the order in which they are judged."""

    def __init__(self) -> None:
        self._noted: list[Noted[Any]] = []

    def note(self, check: Check[T]) -> Noted[T]:
        """Take a check to be read."""
        noted = Noted(check)
        self._noted.append(noted)
        return noted

    def read(self) -> None:
        """Read and judge what was noted since the last time.

        Raises:
            ComputeError: of the first check that fails.
        """
        noted, self._noted = self._noted, []
        unread = [each.check.numbers for each in noted if each.check.numbers.numel()]
        numbers = torch.cat(unread).tolist() if unread else []
        at = 0
        for each in noted:
            end = at + each.check.numbers.numel()
            each.value = each.check._judged(numbers[at:end])
            at = end

"""What an aggregation rule computes; which there are, and what holds of each: `specs.aggregation`.

Every replica may own any segment, so a result may depend on nothing but the contributions and their
order. Only one order is ever used in a round.

Shapes: n numbers of a segment, fp32 on the CPU.
"""

from abc import ABC, abstractmethod
from importlib import import_module

from torch import Tensor


class Aggregation(ABC):
    """One segment's result in the making; made with n."""

    @abstractmethod
    def __init__(self, size: int) -> None: ...

    @abstractmethod
    def add(self, contribution: Tensor, microbatches: int) -> None:
        """Take the next member's contribution.

        Args:
            contribution: (n,), finite; overwritten afterwards, so what is kept of it is a copy.
            microbatches: how many it is the sum of; with none it holds only what error feedback
                brings back.
        """

    @abstractmethod
    def result(self) -> Tensor:
        """Return (n,), which is the caller's; called once, when all members' are here."""


def new_aggregation(name: str, size: int) -> Aggregation:
    """Begin a segment of so many numbers by a rule of `specs.aggregation.RULES`."""
    rule: type[Aggregation] = import_module(f"client.compute.aggregation.{name}").AGGREGATION
    return rule(size)

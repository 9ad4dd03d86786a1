"""The interface of an aggregation rule; `specs.aggregation` lists the rules and their properties.

Every replica may own any segment, so a result may depend on nothing but the contributions and their
order. Only one order is ever used in a round.

Shapes: n numbers of a segment, fp32 on the CPU.
"""

from abc import ABC, abstractmethod
from importlib import import_module

from torch import Tensor


class Aggregation(ABC):
    """The aggregation of one segment; created with n."""

    @abstractmethod
    def __init__(self, size: int) -> None: ...

    @abstractmethod
    def add(self, contribution: Tensor, microbatches: int) -> None:
        """Take the next member's contribution.

        Args:
            contribution: (n,), finite; overwritten afterwards, so keep only copies.
            microbatches: number of microbatches in the sum; with 0 it holds only error feedback.
        """

    @abstractmethod
    def result(self) -> Tensor:
        """Return (n,), which is the caller's; called once, when all members' are here."""


def new_aggregation(name: str, size: int) -> Aggregation:
    """Begin a segment of ``size`` numbers by a rule of `specs.aggregation.RULES`."""
    rule: type[Aggregation] = import_module(f"client.compute.aggregation.{name}").AGGREGATION
    return rule(size)

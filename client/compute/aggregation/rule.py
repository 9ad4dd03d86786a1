"""The interface of an aggregation rule; `specs.aggregation` lists the rules and their properties.

Every replica may own any segment, so a result may depend on nothing but the contributions, their
order, and what the state of the version says of earlier steps. Only one order is ever used in a
round, and all replicas have the same state.

Shapes: n numbers of a segment, fp32 on the CPU.
"""

from abc import ABC, abstractmethod
from importlib import import_module

from torch import Tensor


class Aggregation(ABC):
    """The aggregation of one segment; created with n and the usual norm."""

    @abstractmethod
    def __init__(self, size: int, usual: float) -> None: ...

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


def new_aggregation(name: str, size: int, usual: float = 0.0) -> Aggregation:
    """Begin a segment by a rule of `specs.aggregation.RULES`.

    Args:
        name: of the rule.
        size: n.
        usual: norm that this part of the mean gradient of a step's microbatches has had lately,
            after clipping; 0: not known.
    """
    module = import_module(f"client.compute.aggregation.{name.replace('-', '_')}")
    rule: type[Aggregation] = module.AGGREGATION
    return rule(size, usual)

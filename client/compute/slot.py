"""A slot holds a step's working set: parameters, gradient sum, ledger and graphs.

A replica is one; an audit has another, of an earlier version. The gradients that autograd writes
(`flat.gradients`) are scratch that both share, because passes and rounds run one at a time.

Shapes: N parameters of the stage.
"""

from dataclasses import dataclass, field

from torch import Tensor

from client.compute.errors import LedgerError
from model_zoo.flat import FlatParameters
from model_zoo.stages import Stage, twin


@dataclass(frozen=True, slots=True)
class Graph:
    """A forward pass that can still be run back: its leaf (None for tokens) and its output."""

    leaf: Tensor | None
    output: Tensor


@dataclass
class Slot:
    """The parameters that a step's gradient is computed at, and what was computed so far."""

    module: Stage
    """The stage, as the step runs it."""
    flat: FlatParameters
    """The weights that passes compute with, and the scratch."""
    gradient_sum: Tensor = field(init=False)
    """Of the step, (N,)."""
    counted: set[int] = field(default_factory=set, init=False)
    """The microbatches of the step that are in it."""
    graphs: dict[int, Graph] = field(default_factory=dict, init=False)
    """Those that are kept: all can be recomputed."""
    sums: dict[int, tuple[bytes, float]] = field(default_factory=dict, init=False)
    """By segment of a round: digest and squared norm of its sum, which lies in the scratch until
    something else uses that."""

    def __post_init__(self) -> None:
        self.gradient_sum = self.flat.home.zeros(self.flat.values.numel())

    def check_counted(self, microbatch: int, *, counted: bool) -> None:
        """Refuse by `LedgerError` to count a microbatch twice, or to take out one that does not
        count."""
        if (microbatch in self.counted) != counted:
            state = "not counted" if counted else "counted already"
            raise LedgerError(f"microbatch {microbatch} is {state} in its step")

    def count(self, microbatch: int) -> None:
        """Add the gradient in scratch, which is that of this microbatch."""
        self.gradient_sum.add_(self.flat.gradients)
        self.counted.add(microbatch)

    def take_out(self, microbatch: int) -> None:
        """Subtract the gradient in scratch, which is that of this microbatch."""
        self.gradient_sum.sub_(self.flat.gradients)
        self.counted.discard(microbatch)

    def copy(self) -> "Slot":
        """A slot of its own with the same parameters and nothing accumulated; it shares the
        scratch, which is zero afterwards."""
        self.sums.clear()
        module = twin(self.module)
        return Slot(module, FlatParameters(module, self.flat.gradients, self.flat.home))

    def clear(self) -> None:
        """Nothing accumulated, no graph kept, no sum in the scratch."""
        self.gradient_sum.zero_()
        self.counted.clear()
        self.graphs.clear()
        self.sums.clear()

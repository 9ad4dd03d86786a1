"""Takes the optimizer's place in a process of a group that does not make the versions."""

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer
from model_zoo.specs.matrices import Matrix
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.vectors import Vectors


class Followed(FlatOptimizer):
    """Keeps nothing: the parameters come from the first rank after every update."""

    def __init__(
        self,
        values: Tensor,
        decay_size: int,
        spec: OptimizerSpec,
        matrices: tuple[Matrix, ...] = (),
        home: Vectors | None = None,
    ) -> None:
        self.values, self.decay_size, self.spec, self.matrices = values, decay_size, spec, matrices
        self.vectors, self.steps_done = (), 0
        self.home = Vectors(values.device) if home is None else home

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> NoReturn:
        """Refuse: another rank updates."""
        raise NotImplementedError("the first rank of the group makes the versions")

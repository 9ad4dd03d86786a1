"""Stochastic gradient descent."""

from collections.abc import Sequence

from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer


class FlatSGD(FlatOptimizer):
    """SGD; keeps nothing."""

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        values.add_(gradient.mul_(-lr))


OPTIMIZER = FlatSGD

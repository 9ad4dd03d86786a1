"""Stochastic gradient descent with Nesterov's momentum."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer
from model_zoo.optimizers.sgd import DecoupledSGD
from model_zoo.specs.optimizer import OptimizerSpec


class FlatNesterov(FlatOptimizer):
    """SGD that keeps the decaying sum of g, and looks one step ahead.

    Source: Sutskever et al., 2013, "On the importance of initialization and momentum in deep
    learning", as in torch.optim.SGD.
    """

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        """See `FlatOptimizer`."""
        (m,) = kept
        m.mul_(self.spec.beta1).add_(gradient)
        torch.mul(m, self.spec.beta1, out=scratch)
        values.add_(scratch.add_(gradient).mul_(-lr))

    @staticmethod
    def twin(spec: OptimizerSpec, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Torch's own."""
        return DecoupledSGD(groups, spec.lr, spec.beta1)


OPTIMIZER = FlatNesterov

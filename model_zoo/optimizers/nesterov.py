"""Stochastic gradient descent with Nesterov's momentum."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer


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


OPTIMIZER = FlatNesterov

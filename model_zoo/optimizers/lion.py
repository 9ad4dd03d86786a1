"""Lion: the sign of an interpolated momentum, with decoupled weight decay."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer


class FlatLion(FlatOptimizer):
    """Lion; keeps a running mean of g.

    Source: Chen et al., arXiv 2302.06675, algorithm 2.
    """

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        """See `FlatOptimizer`."""
        spec, (m,) = self.spec, kept
        torch.mul(m, spec.beta1, out=scratch)
        scratch.add_(gradient * (1 - spec.beta1)).sign_()
        values.add_(scratch.mul_(-lr))
        m.mul_(spec.beta2).add_(gradient.mul_(1 - spec.beta2))


OPTIMIZER = FlatLion

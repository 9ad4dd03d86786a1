"""Adam with decoupled weight decay."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer, square_root


class FlatAdamW(FlatOptimizer):
    """AdamW; keeps the running means of g and g * g.

    Source: Loshchilov & Hutter, arXiv 1711.05101, algorithm 2, as in torch.optim.AdamW.
    """

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        spec, steps = self.spec, self.steps_done
        m, v = kept
        torch.mul(gradient, 1 - spec.beta1, out=scratch)
        m.mul_(spec.beta1).add_(scratch)
        gradient.mul_(gradient).mul_(1 - spec.beta2)
        v.mul_(spec.beta2).add_(gradient)
        denominator = gradient
        square_root(v, out=denominator)
        denominator.mul_(1 / math.sqrt(1 - spec.beta2**steps)).add_(spec.eps)
        torch.div(m, denominator, out=scratch)
        values.add_(scratch.mul_(-lr / (1 - spec.beta1**steps)))


OPTIMIZER = FlatAdamW

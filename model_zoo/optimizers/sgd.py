"""Stochastic gradient descent."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer
from model_zoo.specs.optimizer import OptimizerSpec


class FlatSGD(FlatOptimizer):
    """SGD; keeps nothing."""

    def update(
        self, values: Tensor, gradient: Tensor, kept: Sequence[Tensor], lr: float, scratch: Tensor
    ) -> None:
        """See `FlatOptimizer`."""
        values.add_(gradient.mul_(-lr))

    @staticmethod
    def twin(spec: OptimizerSpec, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """Torch's own."""
        return DecoupledSGD(groups, spec.lr)


class DecoupledSGD(torch.optim.SGD):
    """Torch's, which adds weight decay to the gradient, with decoupled decay."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.0) -> None:
        apart = [group | {"decay": group["weight_decay"], "weight_decay": 0.0} for group in groups]
        super().__init__(apart, lr=lr, momentum=momentum, nesterov=momentum > 0)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """See torch's."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["decay"])
        loss: float | None = super().step(closure)
        return loss


OPTIMIZER = FlatSGD

"""Lion: the sign of an interpolated momentum, with decoupled weight decay."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from model_zoo.optimizers.optimizer import FlatOptimizer
from model_zoo.specs.optimizer import OptimizerSpec


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

    @staticmethod
    def twin(spec: OptimizerSpec, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        """A plain reading of the paper, for torch has none."""
        return _Lion(groups, {"lr": spec.lr, "betas": (spec.beta1, spec.beta2)})


class _Lion(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        state = self.state[parameter]
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        update = torch.lerp(gradient, momentum, first).sign()
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
        state["momentum"] = torch.lerp(gradient, momentum, second)


OPTIMIZER = FlatLion

"""Every optimizer of the zoo from another hand, for the reference trainer: torch's own where it has
one, else a plain reading of the paper."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from model_zoo.optimizers.muon import USUAL_SIZE, factor
from model_zoo.specs.optimizer import OptimizerSpec

Groups = Iterable[dict[str, Any]]


def twin(spec: OptimizerSpec, groups: Groups) -> torch.optim.Optimizer:
    """Return an optimizer's twin.

    Args:
        spec: name and constants.
        groups: parameter groups as torch takes them, with the weight decay of each; ``rows`` are
            those of the matrices of its parameters, which have as many.
    """
    betas = spec.beta1, spec.beta2
    match spec.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=spec.lr, betas=betas, eps=spec.eps, fused=True)
        case "muon":
            return _Muon(groups, {"lr": spec.lr, "betas": betas, "rows": ()})
        case "sgd":
            return _DecoupledSGD(groups, spec.lr)
    raise ValueError(f"{spec.name} has no twin")


class _DecoupledSGD(torch.optim.SGD):
    """Torch's, which adds weight decay to the gradient, with decoupled decay."""

    def __init__(self, groups: Groups, lr: float) -> None:
        apart = [group | {"decay": group["weight_decay"], "weight_decay": 0.0} for group in groups]
        super().__init__(apart, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """See torch's."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["decay"])
        loss: float | None = super().step(closure)
        return loss


class _Muon(torch.optim.Optimizer):
    """In doubles: torch's own iterates in bfloat16, which is too coarse to compare with."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    state = self.state[parameter]
                    state.setdefault("momentum", torch.zeros_like(parameter))
                    update = self._update(parameter.grad, state, group)
                    parameter.sub_(group["lr"] * update)

    def _update(self, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        (first, second), momentum = group["betas"], state["momentum"]
        if not group["rows"]:
            state["momentum"] = torch.lerp(gradient, momentum, second)
            return USUAL_SIZE * torch.lerp(gradient, momentum, first).sign()
        state["momentum"] = torch.lerp(gradient, momentum, first)
        ahead = torch.lerp(gradient, state["momentum"], first)
        matrices = torch.split(ahead.view(-1, ahead.shape[-1]), list(group["rows"]))
        return torch.cat([_plain(matrix) for matrix in matrices]).view(ahead.shape)


def _plain(matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    x = matrix.double() / (1.02 * matrix.double().norm().clamp_min(1e-300))
    x = x.T if rows > columns else x  # the smaller product
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if rows > columns else x
    scaled: Tensor = x * factor(rows, columns)
    return scaled.float()

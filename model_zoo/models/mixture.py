"""Mixture of experts: a router sends each token through a few of many feed-forward parts.

The router also learns to keep the experts equally busy. That loss belongs to the layer: it enters
the gradient where the layer is run back, once, whatever stage the layer is in, and is neither sent
to another stage nor part of the loss that is shown. It is a sum over sequences, like the
cross-entropy, so that a microbatch may be run a few sequences at a time.

Shapes: B sequences, T tokens, N = B T, C width, F inner width of an expert, E experts, K experts of
a token.
Sources: Shazeer et al., arXiv 1701.06538; Fedus et al., arXiv 2101.03961 (the loss, equations 4 to
6); Jiang et al., arXiv 2401.04088 (Mixtral).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.specs.architecture import Experts as Terms
from model_zoo.specs.model import ModelSpec


class Experts(nn.Module):
    """The matrices of all experts: gate and up below one another, and down."""

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(count, width, inner))


class Mixture(nn.Module):
    """SwiGLU experts, added up by their weights."""

    def __init__(self, spec: ModelSpec, terms: Terms) -> None:
        super().__init__()
        self.terms, self.layers = terms, spec.layers
        self.gate = nn.Linear(spec.width, terms.count, bias=False)
        self.experts = Experts(terms.count, spec.width, spec.ffn_width)

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.gate(x).float().softmax(dim=-1)  # (B, T, E)
        weights, chosen = probabilities.topk(self.terms.active)  # (B, T, K) each
        if self.terms.shares == "chosen":
            weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = self._mixed(x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1))
        result = mixed.view(x.shape)  # (B, T, C)
        if not (self.terms.balance and torch.is_grad_enabled()):
            return result
        # As the cross-entropy is a sum over tokens, so is this: T times that of each sequence.
        factor = self.terms.balance * x.shape[1] / self.layers
        return with_loss(result, factor * imbalance(probabilities, chosen).sum())

    def _mixed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of what the chosen experts make of each token, (N, C).

        A token comes at most once to an expert, and the experts take turns: the order of additions
        is always the same.
        """
        mixed = torch.zeros_like(x)
        of_each = (part.unbind() for part in (self.experts.gate_up_proj, self.experts.down_proj))
        for expert, (gate_up, down) in enumerate(zip(*of_each, strict=True)):
            tokens, places = torch.where(chosen == expert)  # of the M that come here
            gate, up = F.linear(x[tokens], gate_up).chunk(2, dim=-1)  # (M, F) each
            result = F.linear(F.silu(gate) * up, down) * weights[tokens, places, None]  # (M, C)
            mixed.index_add_(0, tokens, result.to(mixed.dtype))
        return mixed


def imbalance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return how unequally busy the experts are in each sequence, (B,): K at best, E at worst.

    Args:
        probabilities: of each expert for each token, (B, T, E).
        chosen: numbers of each token's experts, (B, T, K).
    """
    count = probabilities.shape[-1]
    # The share of the tokens that come to an expert has no gradient.
    busy = F.one_hot(chosen, count).sum(dim=2).float().mean(dim=1)  # (B, E)
    return count * (busy * probabilities.mean(dim=1)).sum(dim=-1)


def with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """Return `x`, so that whatever is run back from it also runs `loss`, a scalar, back once."""
    result: Tensor = _WithLoss.apply(x, loss)  # type: ignore[no-untyped-call]
    return result


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())

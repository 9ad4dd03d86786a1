"""The ends of a narrow boundary; see `specs.narrow`.

Shapes: B sequences, T tokens, C width, K numbers of a boundary, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from model_zoo.init import empty_embedding
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice, boundary_ends

_MEAN_WEIGHT = 1e-3
"""Of the loss by which a sender's table follows its stage: small, so that it is clipped with no
other gradient."""


class _Rest(torch.autograd.Function):
    """What a token is beyond what its table says, (B, T, C) each.

    The table gets the gradient of half the squares of that, so that it becomes the mean of its
    tokens, and little is left to be rounded. The gradient of the model's loss would teach it
    nothing that the receiver's table does not learn as well.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, said: Tensor) -> Tensor:
        rest = x - said
        ctx.save_for_backward(rest)
        return rest

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (rest,) = ctx.saved_tensors
        return gradient, rest * -_MEAN_WEIGHT


class Sender(nn.Module):
    """What a stage sends on: hidden (B, T, C) to (B, T, K), fp32, without what the tokens say."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.table = empty_embedding(spec.vocab, spec.width)
        self.projection = nn.Linear(spec.width, spec.boundary_width, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        rest: Tensor = _Rest.apply(x, self.table(tokens))  # type: ignore[no-untyped-call]
        sent: Tensor = self.projection(rest)  # (B, T, K)
        return sent.float()


class Receiver(nn.Module):
    """What a stage begins with: (B, T, K) to hidden (B, T, C), with what the tokens say."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.table = empty_embedding(spec.vocab, spec.width)
        self.projection = nn.Linear(spec.boundary_width, spec.width, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.table(tokens) + self.projection(x)  # (B, T, C)
        return hidden


class Boundary(nn.Module):
    """As much of a boundary as a stage has: one end, or both in the uncut model."""

    def __init__(self, spec: ModelSpec, *, sends: bool, receives: bool) -> None:
        super().__init__()
        self.sender = Sender(spec) if sends else None
        self.receiver = Receiver(spec) if receives else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        if self.sender is not None:
            x = self.sender(x, tokens)
        if self.receiver is not None:
            x = self.receiver(x, tokens)
        return x


def boundaries(spec: ModelSpec, part: StageSlice) -> nn.ModuleDict:
    """Return what a stage has of narrow boundaries, by the layer behind each."""
    ends = boundary_ends(spec, part)
    return nn.ModuleDict(
        {
            str(layer): Boundary(spec, sends=(layer, True) in ends, receives=(layer, False) in ends)
            for layer in sorted({layer for layer, _ in ends})
        }
    )

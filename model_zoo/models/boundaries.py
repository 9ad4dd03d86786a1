"""The ends of a narrow boundary; see `specs.narrow`.

Shapes: B sequences, T tokens, C width, K numbers of a boundary, V vocabulary.
"""

from torch import Tensor, nn

from model_zoo.init import empty_embedding
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice, boundary_ends


class Sender(nn.Module):
    """What a stage sends on: hidden (B, T, C) to (B, T, K), fp32, without what the tokens say."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.table = empty_embedding(spec.vocab, spec.width)
        self.projection = nn.Linear(spec.width, spec.boundary_width, bias=False)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        sent: Tensor = self.projection(x - self.table(tokens))  # (B, T, K)
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

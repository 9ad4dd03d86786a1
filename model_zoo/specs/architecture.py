"""An architecture's description without torch: the shapes it accepts, and its tensors.

`Shape` has the numbers of a model of any architecture. An `Architecture` is a file of
`model_zoo.specs.architectures`; its modules are in the file of the same name in `model_zoo.models`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

Tensors = dict[str, tuple[int, ...]]
"""Shapes of parameters by name, in the order of the module's own parameters."""

_LARGEST = {
    "layers": 1024,
    "width": 65_536,
    "heads": 1024,
    "kv_heads": 1024,
    "ffn_width": 1 << 20,
    "context": 1 << 20,
    "vocab": 1 << 20,
}


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of a decoder-only transformer, each in its range.

    Fields:
        architecture: name of an architecture of the zoo.
        layers, width: number of blocks and size C of the residual stream.
        heads, kv_heads: query heads and key/value heads.
        ffn_width: inner size of the feed-forward part.
        context: longest sequence in tokens.
        vocab: number of tokens.
        rope_theta: base of the rotary angles, where the architecture has them.
        bias: set where linear layers and norms have biases; left out otherwise.

    Raises:
        ValueError: a field is out of range.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    context: int
    vocab: int = 256
    rope_theta: float = 10_000.0
    bias: Literal[True] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} must be an integer from 1 to {largest}, got {value!r}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not 0 < self.rope_theta <= 1e30:
            raise ValueError(f"rope_theta must lie above 0, got {self.rope_theta!r}")
        if self.bias not in (True, msgspec.UNSET):
            raise ValueError("bias must be True, or left out")

    @property
    def has_bias(self) -> bool:
        """Whether linear layers and norms have biases."""
        return self.bias is True

    @property
    def head_width(self) -> int:
        """Size D of one attention head."""
        return self.width // self.heads

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_width


class Architecture(ABC):
    """The facts of one architecture; holds no state."""

    residual_outputs: tuple[str, ...]
    """Endings of the names of the matrices that write into the residual stream: they start
    smaller, by the square root of twice the layers."""

    @abstractmethod
    def problem(self, shape: Shape) -> str | None:
        """Say in words why no such model has this shape, or None."""

    @abstractmethod
    def embedding(self, shape: Shape) -> Tensors:
        """Return the parameters of the embedding, by their names within it."""

    @abstractmethod
    def block(self, shape: Shape) -> Tensors:
        """Return the parameters of one layer, by their names within it."""

    @abstractmethod
    def head(self, shape: Shape) -> Tensors:
        """Return the parameters of the final norm and the output projection."""

    @abstractmethod
    def saved_per_token(self, shape: Shape) -> int:
        """Return how many fp32 numbers a layer keeps per token for its backward pass.

        Counted from what autograd keeps, rounded up.
        """

    @abstractmethod
    def usual_ffn_width(self, width: int) -> int:
        """Return the inner size that such models usually have at a width."""


def linear(name: str, rows: int, columns: int, *, bias: bool = False) -> Tensors:
    """Return the parameters of linear layer ``name``, from ``columns`` to ``rows`` numbers, with a
    ``bias`` or not."""
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def norm(name: str, width: int, *, bias: bool = False) -> Tensors:
    """Return the parameters of normalisation ``name`` of ``width`` numbers: gain and, with
    ``bias``, shift."""
    gain: Tensors = {f"{name}.weight": (width,)}
    return gain | ({f"{name}.bias": (width,)} if bias else {})


def prefixed(prefix: str, tensors: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return the same tensors under longer names."""
    return {prefix + name: shape for name, shape in tensors.items()}

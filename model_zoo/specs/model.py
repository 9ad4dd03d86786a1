"""What a model is, in ten numbers: the part of a swarm's manifest that fixes the network's shape.

Holds no state and imports no torch. A spec may come from a stranger's manifest, so it is
bounded here, before anything is allocated from it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Architecture = Literal["gpt", "llama"]

_LARGEST = {
    "layers": 1024,
    "width": 65_536,
    "heads": 1024,
    "kv_heads": 1024,
    "ffn_width": 1 << 20,
    "context": 1 << 20,
    "vocab": 1 << 20,
}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a decoder-only transformer.

    Fields:
        architecture: `gpt` (nanoGPT's) or `llama` (RMSNorm, RoPE, SwiGLU, grouped queries).
        layers, width: number of blocks and size C of the residual stream.
        heads, kv_heads: query heads and key/value heads; equal for `gpt`.
        ffn_width: inner size of the feed-forward part.
        context: longest sequence in tokens.
        vocab: number of tokens; 256 means bytes.
        rope_theta: base of the rotary angles; `llama` only.
        bias: biases in linear layers and norms; `gpt` only.

    Raises:
        ValueError: a field is out of range or the fields contradict each other.
    """

    architecture: Architecture
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    context: int
    vocab: int = 256
    rope_theta: float = 10_000.0
    bias: bool = False

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            known = ", ".join(get_args(Architecture))
            raise ValueError(f"architecture {self.architecture!r} is unknown; known are {known}")
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= largest:
                raise ValueError(f"{name} must be an integer from 1 to {largest}, got {value!r}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.architecture == "gpt":
            self._check_gpt()
        else:
            self._check_llama()

    def _check_gpt(self) -> None:
        if self.kv_heads != self.heads:
            raise ValueError(f"gpt needs kv_heads == heads, got {self.kv_heads} and {self.heads}")

    def _check_llama(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, got {self.head_width}")
        if not 1.0 < self.rope_theta < 1e12:
            raise ValueError(f"rope_theta must lie between 1 and 1e12, got {self.rope_theta!r}")
        if self.bias:
            raise ValueError("llama has no biases; set bias to False")

    @property
    def head_width(self) -> int:
        """Size D of one attention head."""
        return self.width // self.heads

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_width

    @property
    def layer_matrix_size(self) -> int:
        """Weights of one block's matrices, the ones every token is multiplied with."""
        attention = self.width * self.qkv_width + self.width * self.width
        ffn_matrices = 2 if self.architecture == "gpt" else 3
        return attention + ffn_matrices * self.width * self.ffn_width

    @property
    def embedding_parameter_count(self) -> int:
        """Parameters of the embedding part."""
        positions = self.context if self.architecture == "gpt" else 0
        return (self.vocab + positions) * self.width

    @property
    def layer_parameter_count(self) -> int:
        """Parameters of one block."""
        norms = 2 * self.width
        biases = self.qkv_width + self.ffn_width + 2 * self.width + norms if self.bias else 0
        return self.layer_matrix_size + norms + biases

    @property
    def head_parameter_count(self) -> int:
        """Parameters of the final norm and the output projection."""
        return self.vocab * self.width + self.width * (2 if self.bias else 1)

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, output head untied from the embedding."""
        ends = self.embedding_parameter_count + self.head_parameter_count
        return ends + self.layers * self.layer_parameter_count

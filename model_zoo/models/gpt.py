"""GPT as nanoGPT trains it: pre-LayerNorm blocks, learned positions, GELU, optional biases.

Modules have the names of GPT-2 in `transformers`, whose matrices are transposed. There is one
departure from nanoGPT: the output projection has its own weights unless the model is tied, because
the first and the last stage live on different machines. There is no dropout: a backward pass on a
second machine recomputes the forward pass and has to find the same numbers.

Shapes: B sequences, T tokens, C width, H heads, D head width (C = H D), V vocabulary.
Source: Radford et al. 2019 (GPT-2); github.com/karpathy/nanoGPT, `model.py`.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.documents import Documents
from model_zoo.models.family import Block, Decoder
from model_zoo.specs.model import ModelSpec


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of (B, H, T, D) each."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.c_attn = nn.Linear(spec.width, 3 * spec.width, bias=spec.bias)
        self.c_proj = nn.Linear(spec.width, spec.width, bias=spec.bias)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        batch, length, _ = x.shape
        qkv: Tensor = self.c_attn(x)  # (B, T, 3C)
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)  # (B, H, T, D)
            for part in qkv.chunk(3, dim=2)
        )
        mixed = documents.attend(attend, q, k, v) if documents else attend(q, k, v)  # (B, H, T, D)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, T, C)
        result: Tensor = self.c_proj(joined)
        return result


def gelu_of_gpt2(x: Tensor) -> Tensor:
    """GELU by a tangent, in GPT-2's own steps: its last bits differ from `tanh_gelu`'s.

    In bf16 these bits are rounded away. The steps would pass eight times over a block's widest
    tensor, in fp32, because autocast computes powers in it.
    """
    if x.dtype != torch.float32:
        return tanh_gelu(x)
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by a tangent, in one step."""
    return F.gelu(x, approximate="tanh")


_GELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": F.gelu,
    "tanh": tanh_gelu,
    "new": gelu_of_gpt2,
}


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them: exact, by erf, where the spec names none."""

    def __init__(self, spec: ModelSpec, *, gelu: str = "", bias: bool = False) -> None:
        super().__init__()
        self.gelu, bias = _GELUS[gelu or spec.gelu], bias or spec.bias
        self.c_fc = nn.Linear(spec.width, spec.ffn_width, bias=bias)
        self.c_proj = nn.Linear(spec.ffn_width, spec.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c_proj(self.gelu(self.c_fc(x)))  # (B, T, C)
        return result


class GptBlock(Block):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.ln_1 = self.norm(spec)
        self.attn = Attention(spec)
        self.ln_2 = self.norm(spec)
        self.mlp = FeedForward(spec)

    @staticmethod
    def norm(spec: ModelSpec) -> nn.LayerNorm:
        """See `Block`. A gain always, a shift only with `spec.bias`."""
        return nn.LayerNorm(spec.width, eps=spec.norm_eps, bias=spec.bias)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        x = x + self.attn(self.ln_1(x), documents)  # (B, T, C)
        result: Tensor = x + self.mlp(self.ln_2(x))  # (B, T, C)
        return result


class Gpt(Decoder):
    """Embedding by token plus learned position, layers, final norm."""

    wpe: nn.Embedding

    def embed(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        if documents is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)  # (T,)
        else:
            positions = documents.positions  # (B, T)
        hidden: Tensor = super().embed(tokens, documents) + self.wpe(positions)  # (B, T, C)
        return hidden


DECODER = partial(Gpt, GptBlock)

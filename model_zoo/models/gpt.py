"""GPT as nanoGPT trains it: pre-LayerNorm blocks, learned positions, GELU, optional biases.

Three parts, from which a whole model or any stage of it is made: `Embedding`, `Block`, `Head`.
There is one departure from nanoGPT: the head has its own weights, because the first and the
last stage live on different machines. There is no dropout: a backward pass on a second machine
recomputes the forward pass and has to find the same numbers.

Shapes: B sequences, T tokens, C width, H heads, D head width (C = H D), V vocabulary.
Source: Radford et al. 2019 (GPT-2); github.com/karpathy/nanoGPT, `model.py`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.init import empty_embedding
from model_zoo.specs.model import ModelSpec

NORM_EPS = 1e-5


def layer_norm(spec: ModelSpec) -> nn.LayerNorm:
    """The normalisation of this architecture: gain always, shift only with `spec.has_bias`."""
    return nn.LayerNorm(spec.width, eps=NORM_EPS, bias=spec.has_bias)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.qkv = nn.Linear(spec.width, 3 * spec.width, bias=spec.has_bias)
        self.out = nn.Linear(spec.width, spec.width, bias=spec.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv: Tensor = self.qkv(x)  # (B, T, 3C)
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)  # (B, H, T, D)
            for part in qkv.chunk(3, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D)
        joined = mixed.transpose(1, 2).reshape(batch, length, width)  # (B, T, C)
        result: Tensor = self.out(joined)
        return result


class FeedForward(nn.Module):
    """Two linear layers with a GELU (exact, by erf) between them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.width, spec.ffn_width, bias=spec.has_bias)
        self.down = nn.Linear(spec.ffn_width, spec.width, bias=spec.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(x)))  # (B, T, C)
        return result


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attn_norm = layer_norm(spec)
        self.attn = Attention(spec)
        self.ffn_norm = layer_norm(spec)
        self.ffn = FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))  # (B, T, C)
        result: Tensor = x + self.ffn(self.ffn_norm(x))  # (B, T, C)
        return result


class Embedding(nn.Module):
    """Token plus learned position: tokens (B, T) int64 to hidden (B, T, C)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token = empty_embedding(spec.vocab, spec.width)
        self.position = empty_embedding(spec.context, spec.width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (T,)
        hidden: Tensor = self.token(tokens) + self.position(positions)  # (B, T, C)
        return hidden


class Head(nn.Module):
    """Final norm and projection: hidden (B, T, C) to logits (B, T, V)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = layer_norm(spec)
        self.proj = nn.Linear(spec.width, spec.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.proj(self.norm(x))  # (B, T, V)
        return logits

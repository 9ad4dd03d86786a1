"""A Llama-style model: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases.

The switches of the spec make its relatives of it: Qwen2 (biases of queries, keys and values), Qwen3
(normalised queries and keys), Mistral (a window), SmolLM3 (layers without positions), OLMo-2 (norms
after attention and feed-forward), Mixtral, Qwen3-MoE and OLMoE (`mixture`).

Three parts, from which a whole model or any stage of it is made: `Embedding`, `Block`, `Head`.
Rotary positions are applied inside each block, so no stage needs anything but the hidden state and,
where there are several in a sequence, the borders of documents.

Shapes: B sequences, T tokens, C width, H query heads, K key/value heads, D head width
(C = H D where the spec names none), F inner width, V vocabulary.
Sources: Touvron et al., arXiv 2302.13971; Su et al., arXiv 2104.09864 (RoPE, in the half-split
layout of Hugging Face); Shazeer, arXiv 2002.05202 (SwiGLU); Ainslie et al., arXiv 2305.13245.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.init import empty_embedding
from model_zoo.models.documents import Documents
from model_zoo.models.family import Family
from model_zoo.models.mixture import Mixture
from model_zoo.models.tied import project
from model_zoo.specs.architecture import Rope
from model_zoo.specs.model import ModelSpec


def rotary_tables(spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (context, D / 2) fp32."""
    # Named device: tables hold real numbers even while a model is laid out on "meta".
    positions = torch.arange(spec.context, device="cpu")
    steps = torch.arange(0, spec.head_width, 2, device="cpu")
    if spec.rope is None:
        exponents = steps.double() / spec.head_width
        angles = torch.outer(positions.double(), spec.rope_theta**-exponents)  # (context, D / 2)
        return angles.cos().float(), angles.sin().float()
    frequencies = 1.0 / spec.rope_theta ** (steps.float() / spec.head_width)  # (D / 2)
    angles = torch.outer(positions.float(), scaled(frequencies, spec.rope))  # (context, D / 2)
    return angles.cos(), angles.sin()


def scaled(frequencies: Tensor, rope: Rope) -> Tensor:
    """Angles per token (D / 2), made smaller so that a longer context has the angles of the
    original one.

    Source: `transformers`, `modeling_rope_utils.py`, step by step: other steps round differently.
    """
    if rope.kind == "default":
        return frequencies
    if rope.kind == "linear":
        return frequencies / rope.factor
    lengths = 2 * math.pi / frequencies  # of a rotation, in tokens
    slow, fast = lengths > rope.original / rope.low, lengths < rope.original / rope.high
    kept = (rope.original / lengths - rope.low) / (rope.high - rope.low)  # share
    divided = frequencies / rope.factor
    result = torch.where(slow, divided, frequencies)
    blended = (1 - kept) * result / rope.factor + kept * result
    return torch.where(~slow & ~fast, blended, result)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of x (B, H, T, D) by its position's angle.

    `cos` and `sin` are those of the angles, (T, D / 2) or (B, 1, T, D / 2). The shape stays.
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, D / 2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention in which H / K query heads share one key/value head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.head_width, self.window = spec.head_width, spec.window
        self.groups = [spec.heads, spec.kv_heads, spec.kv_heads]
        self.qkv = nn.Linear(spec.width, spec.qkv_width, bias=spec.qkv_bias)
        self.out = nn.Linear(spec.joined_width, spec.width, bias=False)
        self.norm_heads_at_once = spec.qk_norm == "projection"
        self.q_norm = self.k_norm = None
        if spec.qk_norm is not None:
            query, key = self.groups[:2] if self.norm_heads_at_once else (1, 1)
            self.q_norm = nn.RMSNorm(query * spec.head_width, eps=spec.norm_eps)
            self.k_norm = nn.RMSNorm(key * spec.head_width, eps=spec.norm_eps)
        self.rotates = spec.has_positions(layer)
        if self.rotates:
            cos, sin = rotary_tables(spec)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        batch, length, _ = x.shape
        qkv: Tensor = self.qkv(x).view(batch, length, -1, self.head_width)  # (B, T, H + 2K, D)
        q, k, v = torch.split(qkv, self.groups, dim=2)  # (B, T, H, D), (B, T, K, D) twice
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.rotates:
            cos, sin = self._angles(length, documents)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)  # (B, H, T, D), (B, K, T, D)
        attend = self._attend
        mixed = documents.attend(attend, q, k, v) if documents else attend(q, k, v)  # (B, H, T, D)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, T, H D)
        result: Tensor = self.out(joined)  # (B, T, C)
        return result

    def _normed(self, heads: Tensor, norm: nn.RMSNorm) -> Tensor:
        """Normalise each head, or all together; (B, T, H, D) stays."""
        given = heads.flatten(2) if self.norm_heads_at_once else heads
        result: Tensor = norm(given).view(heads.shape)
        return result

    def _angles(self, length: int, documents: Documents | None) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the tokens' angles, (T, D / 2), or (B, 1, T, D / 2) of documents."""
        if documents is None:
            return self.cos[:length], self.sin[:length]
        at = documents.positions[:, None]  # (B, 1, T)
        return self.cos[at], self.sin[at]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q (B, H, T, D) with k and v (B, K, T, D)."""
        seen = self._seen(q.shape[2], q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=True
        )

    def _seen(self, length: int, device: torch.device) -> Tensor | None:
        """Which tokens each token sees, (T, T), where that is not all before it."""
        if self.window is None or length <= self.window:
            return None
        positions = torch.arange(length, device=device)
        back = positions[:, None] - positions  # (T, T)
        return (back >= 0) & (back < self.window)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.up = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.down = nn.Linear(spec.ffn_width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.gate(x)) * self.up(x)  # (B, T, F)
        result: Tensor = self.down(inner)  # (B, T, C)
        return result


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.attn = Attention(spec, layer)
        self.ffn_norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.ffn = FeedForward(spec) if spec.experts is None else Mixture(spec, spec.experts)
        self.norms_after = spec.post_norm

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        if self.norms_after:
            x = x + self.attn_norm(self.attn(x, documents))  # (B, T, C)
            after: Tensor = x + self.ffn_norm(self.ffn(x))  # (B, T, C)
            return after
        x = x + self.attn(self.attn_norm(x), documents)  # (B, T, C)
        result: Tensor = x + self.ffn(self.ffn_norm(x))  # (B, T, C)
        return result


class Embedding(nn.Module):
    """Token embedding: tokens (B, T) int64 to hidden (B, T, C)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token = empty_embedding(spec.vocab, spec.width)

    def forward(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        hidden: Tensor = self.token(tokens)  # (B, T, C)
        return hidden


class Head(nn.Module):
    """Final norm and projection: hidden (B, T, C) to logits (B, T, V).

    A tied model has no projection here: its embedding (V, C) is given.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        if not spec.tied:
            self.proj = nn.Linear(spec.width, spec.vocab, bias=False)

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        x = self.norm(x)
        logits: Tensor = self.proj(x) if embedding is None else project(x, embedding)  # (B, T, V)
        return logits


FAMILY = Family(Embedding, Block, Head)

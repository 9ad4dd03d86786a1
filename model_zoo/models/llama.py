"""A Llama-style model: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases.

The switches of the spec make its relatives of it: Qwen2 (biases of queries, keys and values), Qwen3
(normalised queries and keys), Mistral (a window), SmolLM3 (layers without positions), OLMo-2 (norms
after attention and feed-forward), Mixtral, Qwen3-MoE and OLMoE (`mixture`).

Modules have their names in `transformers`.
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
from model_zoo.models.family import Decoder
from model_zoo.models.mixture import Mixture
from model_zoo.specs.architecture import Rope
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice


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
        query, key = (heads * spec.head_width for heads in (spec.heads, spec.kv_heads))
        self.q_proj = nn.Linear(spec.width, query, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(spec.width, key, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(spec.width, key, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(query, spec.width, bias=False)
        self.norms_each_head = spec.qk_norm == "head"
        self.q_norm = self.k_norm = None
        if spec.qk_norm is not None:
            if self.norms_each_head:
                query = key = spec.head_width
            self.q_norm = nn.RMSNorm(query, eps=spec.norm_eps)
            self.k_norm = nn.RMSNorm(key, eps=spec.norm_eps)
        self.rotates = spec.has_positions(layer)
        if self.rotates:
            cos, sin = rotary_tables(spec)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        q = self._heads(self.q_proj(x), self.q_norm)  # (B, H, T, D)
        k = self._heads(self.k_proj(x), self.k_norm)  # (B, K, T, D)
        v = self._heads(self.v_proj(x), None)
        if self.rotates:
            cos, sin = self._angles(x.shape[1], documents)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attend = self._attend
        mixed = documents.attend(attend, q, k, v) if documents else attend(q, k, v)  # (B, H, T, D)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, T, H D)
        result: Tensor = self.o_proj(joined)  # (B, T, C)
        return result

    def _heads(self, x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
        """Cut (B, T, H D) into heads, (B, H, T, D), normalised each or all together."""
        if norm is not None and not self.norms_each_head:
            x = norm(x)
        heads = x.view(*x.shape[:2], -1, self.head_width)  # (B, T, H, D)
        if norm is not None and self.norms_each_head:
            heads = norm(heads)
        return heads.transpose(1, 2)

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
        self.gate_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.ffn_width, bias=False)
        self.down_proj = nn.Linear(spec.ffn_width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.gate_proj(x)) * self.up_proj(x)  # (B, T, F)
        result: Tensor = self.down_proj(inner)  # (B, T, C)
        return result


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.post_attention_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.post_feedforward_layernorm = self.input_layernorm = None
        if spec.post_norm:
            self.post_feedforward_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        else:
            self.input_layernorm = nn.RMSNorm(spec.width, eps=spec.norm_eps)
        self.self_attn = Attention(spec, layer)
        self.mlp = FeedForward(spec) if spec.experts is None else Mixture(spec, spec.experts)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        if self.input_layernorm is not None:
            x = x + self.self_attn(self.input_layernorm(x), documents)  # (B, T, C)
            before: Tensor = x + self.mlp(self.post_attention_layernorm(x))  # (B, T, C)
            return before
        assert self.post_feedforward_layernorm is not None  # one of the two is there
        x = x + self.post_attention_layernorm(self.self_attn(x, documents))  # (B, T, C)
        after: Tensor = x + self.post_feedforward_layernorm(self.mlp(x))  # (B, T, C)
        return after


class Llama(Decoder):
    """Embedding by token, layers, final norm."""

    def __init__(self, spec: ModelSpec, part: StageSlice) -> None:
        super().__init__()
        if part.embeds:
            self.embed_tokens = empty_embedding(spec.vocab, spec.width)
        self.layers = nn.ModuleDict({str(layer): Block(spec, layer) for layer in part.layers})
        if part.has_head:
            self.norm = nn.RMSNorm(spec.width, eps=spec.norm_eps)

    @property
    def blocks(self) -> nn.ModuleDict:
        """See `Decoder`."""
        return self.layers

    @property
    def final_norm(self) -> nn.Module:
        """See `Decoder`."""
        return self.norm

    def embed(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        """See `Decoder`."""
        hidden: Tensor = self.embed_tokens(tokens)  # (B, T, C)
        return hidden


DECODER = Llama

"""Llama and its relatives: norms, rotary positions, grouped-query attention, a gated feed-forward.

What a relative has otherwise, its family says (`specs/families`), and its spec in numbers; one with
other modules inherits from these. Modules have their names in `transformers`.
Rotary positions are applied inside each block, so no stage needs anything but the hidden state and,
where there are several in a sequence, the borders of documents.

Shapes: B sequences, T tokens, C width, H query heads, K key/value heads, D head width
(C = H D where the spec names none), F inner width, V vocabulary.
Sources: Touvron et al., arXiv 2302.13971; Su et al., arXiv 2104.09864 (RoPE, in the half-split
layout of Hugging Face); Shazeer, arXiv 2002.05202 (SwiGLU); Ainslie et al., arXiv 2305.13245; Peng
et al., arXiv 2309.00071 (YaRN).
"""

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.documents import Documents
from model_zoo.models.family import Block, Decoder
from model_zoo.models.mixture import Mixture
from model_zoo.specs.architecture import Rope
from model_zoo.specs.families.llama import LlamaLike
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice


def facts_of(spec: ModelSpec) -> LlamaLike:
    """Return the description of a relative."""
    assert isinstance(spec.facts, LlamaLike)  # which named this file
    return spec.facts


def rotary_tables(spec: ModelSpec, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles in a layer, each (context, R / 2) fp32, where R
    numbers of a head are rotated."""
    # Named device: tables hold real numbers even while a model is laid out on "meta".
    positions = torch.arange(spec.context, device="cpu")
    rope, theta = spec.rope, spec.rope_theta
    if spec.local_theta is not None and spec.window_of(layer) is not None:
        rope, theta = Rope(dims=rope.dims), spec.local_theta
    angles = torch.outer(positions.float(), frequencies(rope, theta, spec.head_width))
    size = rope_magnitude(rope)
    return angles.cos() * size, angles.sin() * size


def rope_magnitude(rope: Rope) -> float:
    """Factor of the rotated queries and keys."""
    if rope.kind != "yarn":
        return 1.0
    return 0.1 * math.log(rope.factor) + 1.0 if rope.magnitude is None else rope.magnitude


def frequencies(rope: Rope, theta: float, head_width: int) -> Tensor:
    """Angles per token (R / 2), made smaller so that a longer context has the angles of the
    original one.

    Source: `transformers`, `modeling_rope_utils.py`, step by step: other steps round differently.
    """
    width = rope.dims or head_width
    powers = theta ** (torch.arange(0, width, 2, device="cpu").float() / width)  # (R / 2)
    plain: Tensor = 1.0 / powers
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "yarn":
        first, last = (_pair_of(turns, rope, theta, width) for turns in (rope.high, rope.low))
        first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        steps = torch.arange(width // 2, device="cpu").float() - first
        kept = 1 - torch.clamp(steps / (last - first or 0.001), 0, 1)  # share
        return 1.0 / (rope.factor * powers) * (1 - kept) + plain * kept
    lengths = 2 * math.pi / plain  # of a rotation, in tokens
    slow, fast = lengths > rope.original / rope.low, lengths < rope.original / rope.high
    kept = (rope.original / lengths - rope.low) / (rope.high - rope.low)  # share
    result = torch.where(slow, plain / rope.factor, plain)
    blended = (1 - kept) * result / rope.factor + kept * result
    return torch.where(~slow & ~fast, blended, result)


def _pair_of(turns: float, rope: Rope, theta: float, width: int) -> float:
    """Which pair of a head turns so many times within the original context."""
    return width * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + R/2]) of x (B, H, T, D) by its position's angle.

    `cos` and `sin` are those of the angles, (T, R / 2) or (B, 1, T, R / 2): the first R numbers of
    a head are rotated, the others stay as they are. The shape stays.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    parts = (first * cos - second * sin, second * cos + first * sin)  # (B, H, T, R / 2) each
    return torch.cat(parts if not rest.shape[-1] else (*parts, rest), dim=-1)


def bounded(x: Tensor, cap: float) -> Tensor:
    """Return numbers brought between -cap and cap by a tangent, in the steps of `transformers`."""
    return torch.tanh(x / cap) * cap


class Attention(nn.Module):
    """Causal self-attention in which H / K query heads share one key/value head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        facts = facts_of(spec)
        self.head_width, self.window = spec.head_width, spec.window_of(layer)
        self.scale = spec.score_scale
        self.sizes = [heads * spec.head_width for heads in (spec.heads, spec.kv_heads)]
        self.make_projections(spec, facts)
        self.norms_each_head = facts.qk_norm == "head"
        self.q_norm = self.k_norm = None
        if facts.qk_norm is not None:
            query, key = [spec.head_width] * 2 if self.norms_each_head else self.sizes
            self.q_norm, self.k_norm = self.norm(query, spec), self.norm(key, spec)
        self.rotates = spec.has_positions(layer)
        if self.rotates:
            cos, sin = rotary_tables(spec, layer)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def make_projections(self, spec: ModelSpec, facts: LlamaLike) -> None:
        """Make the linear layers."""
        (query, key), bias = self.sizes, facts.biases != "none"
        self.q_proj = nn.Linear(spec.width, query, bias=bias)
        self.k_proj = nn.Linear(spec.width, key, bias=bias)
        self.v_proj = nn.Linear(spec.width, key, bias=bias)
        self.o_proj = nn.Linear(query, spec.width, bias=facts.biases == "all")

    def norm(self, width: int, spec: ModelSpec) -> nn.Module:
        """Return a norm of queries or keys."""
        return nn.RMSNorm(width, eps=spec.norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of all heads, (B, T, H D) or (B, T, K D) each."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        query, key, value = self.project(x)
        q = self._heads(query, self.q_norm)  # (B, H, T, D)
        k, v = self._heads(key, self.k_norm), self._heads(value, None)  # (B, K, T, D)
        if self.rotates:
            cos, sin = self._angles(x.shape[1], documents)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attend = self.attend
        mixed = documents.attend(attend, q, k, v) if documents else attend(q, k, v)  # (B, H, T, D)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, T, H D)
        return self.output(joined)  # (B, T, C)

    def output(self, x: Tensor) -> Tensor:
        """Project all heads side by side, (B, T, H D), to (B, T, C)."""
        result: Tensor = self.o_proj(x)
        return result

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Cut (B, T, H D) into heads, (B, H, T, D), normalised each or all together."""
        if norm is not None and not self.norms_each_head:
            x = norm(x)
        heads = x.view(*x.shape[:2], -1, self.head_width)  # (B, T, H, D)
        if norm is not None and self.norms_each_head:
            heads = norm(heads)
        return heads.transpose(1, 2)

    def _angles(self, length: int, documents: Documents | None) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the tokens' angles, (T, R / 2), or (B, 1, T, R / 2) of documents."""
        if documents is None:
            return self.cos[:length], self.sin[:length]
        at = documents.positions[:, None]  # (B, 1, T)
        return self.cos[at], self.sin[at]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q (B, H, T, D) with k and v (B, K, T, D)."""
        seen = self.seen(q.shape[2], q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=self.scale, enable_gqa=True
        )

    def seen(self, length: int, device: torch.device) -> Tensor | None:
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


class LlamaBlock(Block):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    attention: ClassVar[type[Attention]] = Attention
    feed_forward: ClassVar[type[nn.Module]] = FeedForward

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.residual = spec.scales.residual
        self.norms = facts_of(spec).norms
        for name in filter(None, self.norms):
            self.add_module(name, self.norm(spec))
        self.self_attn = self.attention(spec, layer)
        self.mlp = self.feed_forward(spec) if spec.experts is None else Mixture(spec, spec.experts)

    @staticmethod
    def norm(spec: ModelSpec) -> nn.Module:
        return nn.RMSNorm(spec.width, eps=spec.norm_eps)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        taken, returned, taken_by_mlp, returned_by_mlp = self.norms
        mixed = self.self_attn(self._normed(taken, x), documents)  # (B, T, C)
        x = self._added(x, self._normed(returned, mixed))
        inner = self.mlp(self._normed(taken_by_mlp, x))  # (B, T, C)
        return self._added(x, self._normed(returned_by_mlp, inner))

    def _normed(self, name: str | None, x: Tensor) -> Tensor:
        found: Tensor = x if name is None else getattr(self, name)(x)
        return found

    def _added(self, x: Tensor, change: Tensor) -> Tensor:
        return x + (change if self.residual == 1 else change * self.residual)


class Llama(Decoder):
    """Embedding by token, layers, final norm."""

    def __init__(self, block: type[Block], spec: ModelSpec, part: StageSlice) -> None:
        super().__init__(block, spec, part)
        self.scale = facts_of(spec).embedding_scale(spec)

    def embed(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        hidden = super().embed(tokens, documents)
        return hidden if self.scale == 1 else hidden * self.scale


DECODER = partial(Llama, LlamaBlock)

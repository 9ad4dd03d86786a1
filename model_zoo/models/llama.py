"""A Llama-style model: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases.

Three parts, from which a whole model or any stage of it is made: `Embedding`, `Block`, `Head`.
Rotary positions are applied inside each block, so no stage needs anything but the hidden state.

Shapes: B sequences, T tokens, C width, H query heads, K key/value heads, D head width (C = H D),
F inner width, V vocabulary.
Sources: Touvron et al., arXiv 2302.13971; Su et al., arXiv 2104.09864 (RoPE, in the half-split
layout of Hugging Face); Shazeer, arXiv 2002.05202 (SwiGLU); Ainslie et al., arXiv 2305.13245.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.init import empty_embedding
from model_zoo.models.family import Family, State
from model_zoo.specs.model import ModelSpec

NORM_EPS = 1e-5


def rotary_tables(spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (context, D / 2) fp32."""
    # Named device: tables hold real numbers even while a model is laid out on "meta".
    exponents = torch.arange(0, spec.head_width, 2, device="cpu").double() / spec.head_width
    positions = torch.arange(spec.context, device="cpu").double()
    angles = torch.outer(positions, spec.rope_theta**-exponents)  # (context, D / 2)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of x (B, H, T, D) by its position's angle.

    `cos` and `sin` are those of the angles, (T, D / 2). Returns the shape of `x`.
    """
    first, second = x.chunk(2, dim=-1)  # (B, H, T, D / 2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention in which H / K query heads share one key/value head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_width = spec.head_width
        self.groups = [spec.heads, spec.kv_heads, spec.kv_heads]
        self.qkv = nn.Linear(spec.width, spec.qkv_width, bias=False)
        self.out = nn.Linear(spec.width, spec.width, bias=False)
        cos, sin = rotary_tables(spec)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv: Tensor = self.qkv(x).view(batch, length, -1, self.head_width)  # (B, T, H + 2K, D)
        q, k, v = (part.transpose(1, 2) for part in torch.split(qkv, self.groups, dim=2))
        cos, sin = self.cos[:length], self.sin[:length]  # (T, D / 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)  # (B, H, T, D), (B, K, T, D)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        joined = mixed.transpose(1, 2).reshape(batch, length, width)  # (B, T, C)
        result: Tensor = self.out(joined)
        return result


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

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(spec.width, eps=NORM_EPS)
        self.attn = Attention(spec)
        self.ffn_norm = nn.RMSNorm(spec.width, eps=NORM_EPS)
        self.ffn = FeedForward(spec)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))  # (B, T, C)
        result: Tensor = x + self.ffn(self.ffn_norm(x))  # (B, T, C)
        return result


class Embedding(nn.Module):
    """Token embedding: tokens (B, T) int64 to hidden (B, T, C)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.token = empty_embedding(spec.vocab, spec.width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.token(tokens)  # (B, T, C)
        return hidden


class Head(nn.Module):
    """Final norm and projection: hidden (B, T, C) to logits (B, T, V)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(spec.width, eps=NORM_EPS)
        self.proj = nn.Linear(spec.width, spec.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.proj(self.norm(x))  # (B, T, V)
        return logits


_NAMES = {
    "attn_norm": "input_layernorm",
    "attn.out": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def to_hugging_face(spec: ModelSpec, state: State) -> State:
    """The state of LlamaForCausalLM."""
    tensors = {
        "model.embed_tokens.weight": state["embed.token.weight"],
        "model.norm.weight": state["head.norm.weight"],
        "lm_head.weight": state["head.proj.weight"],
    }
    kv_rows = spec.kv_heads * spec.head_width
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        for name, target in _NAMES.items():
            tensors[f"{theirs}{target}.weight"] = state[f"{ours}{name}.weight"]
        # Rows need no permutation: both sides rotate pairs (i, i + D/2).
        split = torch.split(state[ours + "attn.qkv.weight"], [spec.width, kv_rows, kv_rows])
        for letter, rows in zip("qkv", split, strict=True):
            tensors[f"{theirs}self_attn.{letter}_proj.weight"] = rows
    return tensors


def hugging_face_config(spec: ModelSpec) -> dict[str, Any]:
    """The configuration of LlamaForCausalLM."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "hidden_size": spec.width,
        "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": spec.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
    }


FAMILY = Family(Embedding, Block, Head, to_hugging_face, hugging_face_config)

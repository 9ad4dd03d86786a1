"""GPT as nanoGPT trains it: pre-LayerNorm blocks, learned positions, GELU, optional biases.

Three parts, from which a whole model or any stage of it is made: `Embedding`, `Block`, `Head`.
There is one departure from nanoGPT: the head has its own weights, because the first and the
last stage live on different machines. There is no dropout: a backward pass on a second machine
recomputes the forward pass and has to find the same numbers.

Shapes: B sequences, T tokens, C width, H heads, D head width (C = H D), V vocabulary.
Source: Radford et al. 2019 (GPT-2); github.com/karpathy/nanoGPT, `model.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.init import empty_embedding
from model_zoo.models.family import Family, State
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


_LINEARS = {
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


def to_hugging_face(spec: ModelSpec, state: State) -> State:
    """The state of GPT2LMHeadModel."""
    tensors = {
        "transformer.wte.weight": state["embed.token.weight"],
        "transformer.wpe.weight": state["embed.position.weight"],
        "lm_head.weight": state["head.proj.weight"],
    }
    tensors |= _with_bias(state, "head.norm", "transformer.ln_f")
    for layer in range(spec.layers):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
        tensors |= _with_bias(state, ours + "attn_norm", theirs + "ln_1")
        tensors |= _with_bias(state, ours + "ffn_norm", theirs + "ln_2")
        for name, target in _LINEARS.items():
            linear = _with_bias(state, ours + name, theirs + target)
            weight = theirs + target + ".weight"
            tensors |= linear | {weight: linear[weight].t()}  # Conv1D keeps (inputs, outputs)
    return tensors


def _with_bias(state: State, name: str, target: str) -> State:
    """A weight and its bias; GPT-2 always has one, so a missing bias becomes zeros."""
    weight = state[name + ".weight"]
    bias = state.get(name + ".bias", torch.zeros(weight.shape[0]))
    return {target + ".weight": weight, target + ".bias": bias}


def hugging_face_config(spec: ModelSpec) -> dict[str, Any]:
    """The configuration of GPT2LMHeadModel."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": spec.vocab,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.layers,
        "n_head": spec.heads,
        "n_inner": spec.ffn_width,
        "activation_function": "gelu",
        "layer_norm_epsilon": NORM_EPS,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


FAMILY = Family(Embedding, Block, Head, to_hugging_face, hugging_face_config)

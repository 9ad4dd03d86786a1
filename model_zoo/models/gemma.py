"""Gemma 2 and 3: a Llama with norms whose gains begin at zero, a gated GELU and bounded scores; the
descriptions are in `specs/families`.

Shapes: B sequences, T tokens, C width, H query heads, K key/value heads, D head width, F inner
width.
Sources: Gemma Team, arXiv 2408.00118 and 2503.19786.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.llama import Attention, FeedForward, Llama, LlamaBlock, bounded
from model_zoo.specs.model import ModelSpec


class ShiftedNorm(nn.Module):
    """RMSNorm whose gain is 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight, self.eps)


class GemmaAttention(Attention):
    """Attention whose scores may be bounded by a tangent; then no kernel computes it at once."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.cap = spec.scales.attention_cap

    def norm(self, width: int, spec: ModelSpec) -> nn.Module:
        return ShiftedNorm(width, spec.norm_eps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.cap is None:
            return super().attend(q, k, v)
        length, shared = q.shape[2], q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(shared, dim=1) for part in (k, v))  # (B, H, T, D)
        scores = bounded(q @ k.transpose(2, 3) * self.scale, self.cap)  # (B, H, T, T)
        seen = self.seen(length, q.device)
        if seen is None:
            seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1, dtype=torch.float32)
        mixed: Tensor = weights.to(q.dtype) @ v
        return mixed


class GatedGelu(FeedForward):
    """down(gelu(gate(x)) * up(x)), with the GELU by a tangent."""

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x)  # (B, T, F)
        result: Tensor = self.down_proj(inner)  # (B, T, C)
        return result


class GemmaBlock(LlamaBlock):
    """One layer."""

    attention = GemmaAttention
    feed_forward = GatedGelu

    @staticmethod
    def norm(spec: ModelSpec) -> nn.Module:
        return ShiftedNorm(spec.width, spec.norm_eps)


DECODER = partial(Llama, GemmaBlock)

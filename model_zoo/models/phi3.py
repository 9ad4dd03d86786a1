"""Phi-3: a Llama whose projections are fused; the description is in `specs/families/phi3.py`.

Shapes: B sequences, T tokens, C width, H query heads, K key/value heads, D head width, F inner
width.
Source: Abdin et al., arXiv 2404.14219.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.llama import Attention, Llama, LlamaBlock
from model_zoo.specs.families.llama import LlamaLike
from model_zoo.specs.model import ModelSpec


class FusedAttention(Attention):
    """Queries, keys and values come from one matrix."""

    def make_projections(self, spec: ModelSpec, facts: LlamaLike) -> None:
        query, key = self.sizes
        self.qkv_proj = nn.Linear(spec.width, query + 2 * key, bias=False)
        self.o_proj = nn.Linear(query, spec.width, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key = self.sizes
        q, k, v = self.qkv_proj(x).split((query, key, key), dim=-1)  # (B, T, H D), (B, T, K D) x 2
        return q, k, v


class FusedFeedForward(nn.Module):
    """SwiGLU whose gate and other side come from one matrix."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(spec.width, 2 * spec.ffn_width, bias=False)
        self.down_proj = nn.Linear(spec.ffn_width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # (B, T, F) each
        result: Tensor = self.down_proj(up * F.silu(gate))  # (B, T, C)
        return result


class Phi3Block(LlamaBlock):
    """One layer."""

    attention = FusedAttention
    feed_forward = FusedFeedForward


DECODER = partial(Llama, Phi3Block)

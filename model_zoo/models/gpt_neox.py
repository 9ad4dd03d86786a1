"""GPT-NeoX: attention and feed-forward take the same hidden state; the description is in
`specs/families/gpt_neox.py`.

Shapes: B sequences, T tokens, C width, H heads, D head width (C = H D), V vocabulary.
Source: Black et al., arXiv 2204.06745.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.documents import Documents
from model_zoo.models.family import Block, Decoder
from model_zoo.models.llama import Attention
from model_zoo.specs.families.llama import LlamaLike
from model_zoo.specs.model import ModelSpec


class HeadByHead(Attention):
    """Each head's query, key and value are beside one another in one matrix."""

    def make_projections(self, spec: ModelSpec, facts: LlamaLike) -> None:
        self.query_key_value = nn.Linear(spec.width, 3 * spec.width)
        self.dense = nn.Linear(spec.width, spec.width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.query_key_value(x).view(*x.shape[:2], -1, 3 * self.head_width)
        q, k, v = (part.flatten(2) for part in heads.chunk(3, dim=-1))  # (B, T, H D) each
        return q, k, v

    def output(self, x: Tensor) -> Tensor:
        result: Tensor = self.dense(x)
        return result


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(spec.width, spec.ffn_width)
        self.dense_4h_to_h = nn.Linear(spec.ffn_width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))  # (B, T, C)
        return result


class GptNeoXBlock(Block):
    """One layer: attention and feed-forward, both added to the residual stream at once."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, layer)
        self.input_layernorm = self.norm(spec)
        self.post_attention_layernorm = self.norm(spec)
        self.attention = HeadByHead(spec, layer)
        self.mlp = FeedForward(spec)

    @staticmethod
    def norm(spec: ModelSpec) -> nn.LayerNorm:
        return nn.LayerNorm(spec.width, eps=spec.norm_eps)

    def forward(self, x: Tensor, documents: Documents | None = None) -> Tensor:
        mixed = self.attention(self.input_layernorm(x), documents)  # (B, T, C)
        result: Tensor = self.mlp(self.post_attention_layernorm(x)) + mixed + x
        return result


DECODER = partial(Decoder, GptNeoXBlock)

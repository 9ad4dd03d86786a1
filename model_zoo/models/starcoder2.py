"""StarCoder2: a Llama with LayerNorms, biases and a feed-forward part like GPT's; the description
is in `specs/families/starcoder2.py`.

Shapes: B sequences, T tokens, C width.
Source: Lozhkov et al., arXiv 2402.19173.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.llama import Llama, LlamaBlock
from model_zoo.specs.model import ModelSpec


class FeedForward(nn.Module):
    """Two linear layers with a GELU by a tangent between them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.c_fc = nn.Linear(spec.width, spec.ffn_width)
        self.c_proj = nn.Linear(spec.ffn_width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))  # (B, T, C)
        return result


class StarCoder2Block(LlamaBlock):
    """One layer."""

    feed_forward = FeedForward

    @staticmethod
    def norm(spec: ModelSpec) -> nn.Module:
        """See `Block`."""
        return nn.LayerNorm(spec.width, eps=spec.norm_eps)


class StarCoder2(Llama):
    """Embedding by token, layers, final norm."""

    block = StarCoder2Block


DECODER = StarCoder2

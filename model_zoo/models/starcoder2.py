"""StarCoder2: a Llama with LayerNorms, biases and a feed-forward part like GPT's; the description
is in `specs/families/starcoder2.py`.

Shapes: B sequences, T tokens, C width.
Source: Lozhkov et al., arXiv 2402.19173.
"""

from functools import partial

from torch import nn

from model_zoo.models.gpt import FeedForward
from model_zoo.models.llama import Llama, LlamaBlock
from model_zoo.specs.model import ModelSpec


class BiasedFeedForward(FeedForward):
    """With biases, and a GELU by a tangent."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, gelu="tanh", bias=True)


class StarCoder2Block(LlamaBlock):
    """One layer."""

    feed_forward = BiasedFeedForward

    @staticmethod
    def norm(spec: ModelSpec) -> nn.Module:
        return nn.LayerNorm(spec.width, eps=spec.norm_eps)


DECODER = partial(Llama, StarCoder2Block)

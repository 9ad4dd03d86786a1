"""An output projection that is the embedding's own matrix."""

from torch import Tensor
from torch.nn import functional as F

from model_zoo.models.lora import multiply


def project(x: Tensor, embedding: Tensor) -> Tensor:
    """Return the logits (B, T, V) of hidden x (B, T, C), by an embedding (V, C).

    One that is frozen beside adapters may be in bf16, and is not kept in fp32 between the passes.
    """
    return F.linear(x, embedding) if embedding.requires_grad else multiply(x, embedding, None)

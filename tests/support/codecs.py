"""Payloads of tensors, made and read in one go."""

from typing import Any

from torch import Tensor

from client.compute.codec import begin_decoding, begin_encoding
from client.compute.payload import Buffer


def encode(tensor: Tensor, *how: Any, **named: Any) -> memoryview:
    """The payload of a tensor, unsealed."""
    boundary = begin_encoding(tensor, *how, **named).now()
    boundary.wait()
    return boundary.payload


def decode(payload: Buffer, *how: Any, **named: Any) -> Tensor:
    """The fp32 tensor in a payload."""
    tensor, good = begin_decoding(payload, *how, **named)
    good.now()
    return tensor

"""Adapters of low rank (LoRA) beside weights that are frozen.

A stage of any family is frozen after it was made: its linear layers and embeddings are replaced by
ones that keep their matrices as the base says, maybe packed, and multiply in fp32, and the targets
get adapters. Everything else stays in fp32. Parameters keep their names; an adapter's are, as in
`peft`, `q_proj.lora_A.weight` and `q_proj.lora_B.weight`. There is no dropout.

Shapes: I inputs, O outputs of a linear layer, R rank; X any leading dimensions.
Source: Hu et al., arXiv 2106.09685; `peft`, `tuners/lora/layer.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.models.packed import pack, packed_shape, unpack
from model_zoo.specs.architecture import PACKED_BITS, Lora
from model_zoo.specs.model import ModelSpec

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class FrozenLinear(nn.Module):
    """A linear layer (X, I) to (X, O) that is not trained, with an adapter or without."""

    def __init__(self, linear: nn.Linear, base: str, adapter: Lora | None) -> None:
        super().__init__()
        self._base, self._columns = base, linear.in_features
        self.weight = frozen(linear.weight, base)
        self.bias = None if linear.bias is None else frozen(linear.bias, "fp32")
        self.lora_A = self.lora_B = None
        if adapter is not None:
            self._scale = adapter.scale
            self.lora_A = nn.Linear(linear.in_features, adapter.rank, bias=False)
            self.lora_B = nn.Linear(adapter.rank, linear.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        whole = multiply(x, self.weight, self.bias, self._base, self._columns)
        if self.lora_A is None or self.lora_B is None:
            return whole
        added: Tensor = self.lora_B(self.lora_A(x)) * self._scale
        return whole + added


class FrozenEmbedding(nn.Module):
    """Looks rows up and is not trained: tokens (X) int64 to (X, C) fp32."""

    def __init__(self, embedding: nn.Embedding, base: str) -> None:
        super().__init__()
        self.weight = frozen(embedding.weight, base)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight).float()


def frozen(weight: Tensor, base: str) -> nn.Parameter:
    """Return a parameter that gets no gradient, kept as ``base`` says; packed ones are empty."""
    if base in PACKED_BITS:
        rows, columns = weight.shape
        shape = packed_shape(rows, columns, base)
        packed = torch.empty(shape, dtype=torch.uint8, device=weight.device)
        return nn.Parameter(packed, requires_grad=False)
    return nn.Parameter(weight.detach().to(_DTYPES[base]), requires_grad=False)


def kept(found: Tensor, own: Tensor, lora: Lora | None) -> Tensor:
    """Return a parameter's new value in the type in which a stage keeps it.

    Args:
        found: the value, of any float type; its device is that of what is returned.
        own: the parameter as it is, on any device.
        lora: the stage's adapters.
    """
    if own.dtype == torch.uint8 and lora is not None:
        return pack(found, lora.base)
    return found.to(own.dtype)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, base: str = "fp32", columns: int = 0
) -> Tensor:
    """Return x W^T + bias, (X, O), in fp32 or in what the stage computes in.

    Args:
        x: (X, I).
        weight: (O, I) of any type, or packed.
        bias: (O,), or None.
        base: how the weight is packed, if it is.
        columns: I, where the weight is packed.
    """
    result: Tensor = _Multiply.apply(x, weight, bias, base, columns)  # type: ignore[no-untyped-call]
    return result


class _Multiply(torch.autograd.Function):
    """Keeps the weight as it is between forward and backward, and not a copy in fp32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, base: str, columns: int
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.packed = base, columns
        result = F.linear(x, _whole(weight, base, columns), bias)
        ctx.computed_in = result.dtype  # lower where the stage computes so
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        whole = _whole(weight, *ctx.packed).to(ctx.computed_in)
        return gradient.to(ctx.computed_in) @ whole, None, None, None, None


def _whole(weight: Tensor, base: str, columns: int) -> Tensor:
    """Return a kept matrix in fp32, (O, I)."""
    return unpack(weight, columns, base) if base in PACKED_BITS else weight.float()


def freeze(stage: nn.Module, spec: ModelSpec, lora: Lora) -> None:
    """Freeze all parameters of a stage, which have their names in the whole model, and give its
    blocks their adapters."""
    for parameter in stage.parameters():
        parameter.requires_grad_(False)
    for path, module in list(stage.named_modules()):
        in_block = path.startswith(spec.layers_prefix)
        name = path.removeprefix(spec.layers_prefix).partition(".")[2] if in_block else ""
        replaced: nn.Module
        if isinstance(module, nn.Linear):
            adapter = lora if name in lora.targets else None
            replaced = FrozenLinear(module, lora.base if in_block else lora.ends, adapter)
        elif isinstance(module, nn.Embedding):
            replaced = FrozenEmbedding(module, lora.ends)
        else:
            continue
        parent, _, last = path.rpartition(".")
        setattr(stage.get_submodule(parent), last, replaced)

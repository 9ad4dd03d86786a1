"""Adapters of low rank (LoRA) beside weights that are frozen.

A stage of any family is frozen after it was made: its linear layers and embeddings are replaced by
ones that keep their matrices in the type of the base and multiply in fp32, and the targets get
adapters. Everything else stays in fp32. Parameters keep their names; an adapter's are
`attn.qkv.lora.q_proj.a` and `.b`. There is no dropout, as in all of the zoo.

Shapes: I inputs, O outputs of a linear layer, R rank; X any leading dimensions.
Source: Hu et al., arXiv 2106.09685; `peft`, `tuners/lora/layer.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.specs.architecture import LinearPart, Lora
from model_zoo.specs.model import ModelSpec

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Adapter(nn.Module):
    """What is added to the result of one linear layer: (X, I) to (X, O)."""

    def __init__(self, part: LinearPart, lora: Lora) -> None:
        super().__init__()
        self.scale = lora.scale
        self.a = nn.Parameter(torch.empty(lora.rank, part.columns))
        self.b = nn.Parameter(torch.empty(part.rows, lora.rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b) * self.scale


class FrozenLinear(nn.Module):
    """A linear layer (X, I) to (X, O) that is not trained, with adapters of some of its rows."""

    def __init__(self, linear: nn.Linear, targets: dict[str, LinearPart], lora: Lora) -> None:
        super().__init__()
        self.weight = frozen(linear.weight, _DTYPES[lora.base])
        self.bias = None if linear.bias is None else frozen(linear.bias, torch.float32)
        adapters = {name.replace(".", "_"): Adapter(part, lora) for name, part in targets.items()}
        self.lora = nn.ModuleDict(adapters)
        self._starts = [part.first_row for part in targets.values()]

    def forward(self, x: Tensor) -> Tensor:
        whole = multiply(x, self.weight, self.bias)
        pieces, end = [], 0
        for start, adapter in zip(self._starts, self.lora.values(), strict=True):
            added = adapter(x)
            pieces += [whole[..., end:start]] * (start > end)
            end = start + added.shape[-1]
            pieces.append(whole[..., start:end] + added)
        pieces += [whole[..., end:]] * (end < whole.shape[-1])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


class FrozenEmbedding(nn.Module):
    """Looks rows up and is not trained: tokens (X) int64 to (X, C) fp32."""

    def __init__(self, embedding: nn.Embedding, lora: Lora) -> None:
        super().__init__()
        self.weight = frozen(embedding.weight, _DTYPES[lora.base])

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight).float()


def frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    """Return a parameter that gets no gradient."""
    return nn.Parameter(weight.detach().to(dtype), requires_grad=False)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias in fp32, (X, O), whatever the type of the weight (O, I)."""
    result: Tensor = _Multiply.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Multiply(torch.autograd.Function):
    """Keeps the weight as it is between forward and backward, and not a copy in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight.float(), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight.float(), None, None


def freeze(stage: nn.Module, spec: ModelSpec, lora: Lora) -> None:
    """Freeze all parameters of a stage and give its blocks their adapters.

    Args:
        stage: its `blocks` are by their numbers.
        spec: the model.
        lora: its adapters.
    """
    for parameter in stage.parameters():
        parameter.requires_grad_(False)
    parts = spec.facts.linear_parts(spec)
    targets = {name: parts[name] for name in lora.targets}
    for name, child in stage.named_children():
        if name != "blocks":
            _replace_layers(stage, name, child, "", {}, lora)
            continue
        for block in child.children():
            for inner, module in block.named_children():
                _replace_layers(block, inner, module, inner, targets, lora)


def _replace_layers(
    parent: nn.Module,
    name: str,
    module: nn.Module,
    path: str,
    targets: dict[str, LinearPart],
    lora: Lora,
) -> None:
    """Replace a module, at ``path`` in its block, or what is in it."""
    if isinstance(module, nn.Linear):
        own = {target: part for target, part in targets.items() if part.module == path}
        setattr(parent, name, FrozenLinear(module, own, lora))
    elif isinstance(module, nn.Embedding):
        setattr(parent, name, FrozenEmbedding(module, lora))
    for inner, child in module.named_children():
        _replace_layers(module, inner, child, f"{path}.{inner}", targets, lora)

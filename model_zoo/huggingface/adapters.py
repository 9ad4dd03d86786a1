"""Adapters as `peft` has them, and merged into the weights that they were trained beside."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from model_zoo.huggingface.dtypes import TORCH, DType
from model_zoo.huggingface.filling import filling, save_tensors
from model_zoo.huggingface.layout import layout
from model_zoo.huggingface.tokenizer import write_tokenizer
from model_zoo.models.family import State
from model_zoo.specs.architecture import LinearPart, Lora
from model_zoo.specs.model import ModelSpec, adapter_name
from model_zoo.tokenizers.bpe import Bpe

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"


class _Place(NamedTuple):
    """One adapter: its name here, and the layer that it is of."""

    name: str
    weight: str
    """Name of our matrix."""
    part: LinearPart
    theirs: str
    """Name of the linear layer in `transformers`."""


def merge_adapters(
    spec: ModelSpec, base: Mapping[str, Tensor], adapters: Mapping[str, Tensor]
) -> State:
    """Return the weights of the model without adapters that computes the same, fp32.

    Args:
        spec: the model, with adapters.
        base: its frozen weights by name, of any type.
        adapters: what was trained, by name.

    Raises:
        KeyError: a tensor is missing.
    """
    merged = {name: tensor.to(torch.float32, copy=True) for name, tensor in base.items()}
    lora = _lora(spec)
    for place in _places(spec):
        a, b = adapters[f"{place.name}.a"], adapters[f"{place.name}.b"]
        rows = merged[place.weight].narrow(0, place.part.first_row, place.part.rows)
        rows.add_(b @ a, alpha=lora.scale)
    return merged


def export_adapters(
    spec: ModelSpec,
    adapters: Mapping[str, Tensor],
    out_dir: Path,
    base: str | None = None,
    dtype: DType = "fp32",
    tokenizer: Bpe | None = None,
) -> Path:
    """Write adapters as a folder that `peft` loads beside their base; return ``out_dir``.

    The files appear together or not at all.

    Args:
        spec: the model, with adapters.
        adapters: what was trained, by name.
        out_dir: the folder, created if needed.
        base: name or folder of the base model; None: unknown here.
        dtype: type of the adapters.
        tokenizer: what made the model's tokens, written with its chat template; None: unknown, or
            they are bytes.

    Raises:
        KeyError: a tensor is missing.
        OSError: the folder cannot be written; older files there are unchanged.
    """
    tensors: State = {}
    for place in _places(spec):
        for ours, theirs in (("a", "lora_A"), ("b", "lora_B")):
            tensor = adapters[f"{place.name}.{ours}"].to(TORCH[dtype])
            tensors[f"base_model.model.{place.theirs}.{theirs}.weight"] = tensor.contiguous()
    with filling(out_dir) as made:
        if tokenizer is not None:
            write_tokenizer(tokenizer, made, spec.longest)
        (made / CONFIG).write_text(json.dumps(_config(spec, base), indent=2) + "\n")
        save_tensors(tensors, made / WEIGHTS)
    return out_dir


def _config(spec: ModelSpec, base: str | None) -> dict[str, Any]:
    lora = _lora(spec)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(theirs.transposed for theirs in layout(spec).values()),
        "inference_mode": True,
    }


def _places(spec: ModelSpec) -> Iterator[_Place]:
    """Yield the adapters of all layers."""
    table, parts = layout(spec), spec.facts.linear_parts(spec)
    for layer in range(spec.layers):
        for target in _lora(spec).targets:
            part = parts[target]
            weight = f"blocks.{layer}.{part.module}.weight"
            named = (name.removesuffix(".weight") for name, _ in table[weight].parts)
            theirs = next(name for name in named if name.endswith(f".{target}"))
            yield _Place(
                f"blocks.{layer}.{adapter_name(part.module, target)}", weight, part, theirs
            )


def _lora(spec: ModelSpec) -> Lora:
    assert isinstance(spec.lora, Lora)  # nobody asks else
    return spec.lora

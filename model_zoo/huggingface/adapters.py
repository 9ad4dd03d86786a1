"""Adapters as `peft` has them, and merged into the weights that they were trained beside."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from model_zoo.huggingface.dtypes import TORCH, DType
from model_zoo.huggingface.filling import filling, save_tensors
from model_zoo.huggingface.tokenizer import write_tokenizer
from model_zoo.models.family import State
from model_zoo.specs.architecture import Lora
from model_zoo.specs.model import ModelSpec
from model_zoo.tokenizers.bpe import Bpe

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"


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
    for name in _adapted(spec):
        a, b = (adapters[f"{name}.{each}.weight"] for each in ("lora_A", "lora_B"))
        merged[f"{name}.weight"].add_(b @ a, alpha=lora.scale)
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
    for name in _adapted(spec):
        for each in ("lora_A", "lora_B"):
            tensor = adapters[f"{name}.{each}.weight"].to(TORCH[dtype])
            tensors[f"base_model.model.{name}.{each}.weight"] = tensor.contiguous()
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
        "fan_in_fan_out": bool(spec.facts.transposed),
        "inference_mode": True,
    }


def _adapted(spec: ModelSpec) -> Iterator[str]:
    """Yield the names of the linear layers that have adapters, of all layers."""
    for layer in range(spec.layers):
        yield from (f"{spec.layers_prefix}{layer}.{target}" for target in _lora(spec).targets)


def _lora(spec: ModelSpec) -> Lora:
    assert isinstance(spec.lora, Lora)  # nobody asks else
    return spec.lora

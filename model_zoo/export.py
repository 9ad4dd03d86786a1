"""A trained model as Hugging Face files that `transformers` loads unchanged.

Writes `model.safetensors` in fp32, bf16 or fp16, `config.json` of the class that has the model's
switches, and `generation_config.json`; with a tokenizer also `tokenizer.json` and
`tokenizer_config.json`. No pickle anywhere.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from model_zoo.huggingface.config import to_config
from model_zoo.huggingface.dtypes import TORCH, DType
from model_zoo.huggingface.filling import filling, save_tensors
from model_zoo.huggingface.shards import WEIGHTS
from model_zoo.huggingface.stored import is_transposed, stored_shapes, zeros
from model_zoo.huggingface.tokenizer import write_tokenizer
from model_zoo.models.family import State
from model_zoo.specs.model import ModelSpec
from model_zoo.stages import load_whole
from model_zoo.tokenizers.bpe import Bpe, end_token

GENERATION: Final = "generation_config.json"


def export_hf(
    spec: ModelSpec,
    state: Mapping[str, Tensor],
    out_dir: Path,
    tokenizer: Bpe | None = None,
    dtype: DType = "fp32",
) -> Path:
    """Write a whole model in the Hugging Face layout; return `out_dir`.

    The files appear together or not at all.

    Args:
        spec: the model.
        state: its parameters by name.
        out_dir: the folder, created if needed.
        tokenizer: what made the model's tokens, `byte_tokenizer()` where they are bytes; None:
            unknown.
        dtype: type of the weights.

    Raises:
        ValueError: the state is not that of a whole model of this spec.
        OSError: the folder cannot be written; older files there are unchanged.
    """
    whole = load_whole(spec, state).state_dict()
    config = to_config(spec)
    if tokenizer is not None and (end := end_token(tokenizer)) is not None:
        config = config | {"eos_token_id": end}
    kind = TORCH[dtype]
    config["torch_dtype"] = str(kind).removeprefix("torch.")
    tensors = {name: t.to(kind).contiguous() for name, t in _stored(spec, whole).items()}
    # Without a limit of its own, a pipeline asks short models for more than they take.
    generation = {"max_length": spec.longest}
    if "eos_token_id" in config:
        generation["eos_token_id"] = config["eos_token_id"]
    with filling(out_dir) as made:
        for name, values in (("config.json", _COMMON | config), (GENERATION, generation)):
            (made / name).write_text(json.dumps(values, indent=2) + "\n")
        if tokenizer is not None:
            write_tokenizer(tokenizer, made, spec.longest)
        save_tensors(tensors, made / WEIGHTS)
    return out_dir


def _stored(spec: ModelSpec, state: State) -> State:
    """The tensors as files have them."""
    tensors = {name: torch.zeros(shape) for name, shape in zeros(spec).items()}
    for name, tensor in state.items():
        stored = stored_shapes(spec, name, tuple(tensor.shape))
        whole = tensor.t() if is_transposed(spec, name) else tensor
        rows = whole.flatten(0, 1) if whole.ndim == 3 else whole  # of all experts
        parts = torch.split(rows, [shape[0] for shape in stored.values()])
        tensors |= dict(zip(stored, parts, strict=True))
    return tensors


_COMMON: dict[str, Any] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

"""A trained model as Hugging Face files that `transformers` loads unchanged.

Writes `model.safetensors` and `config.json` of the class that the model's family names, fp32, head
untied. There is no tokenizer file: tokens are bytes. No pickle anywhere.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from model_zoo.models.family import family
from model_zoo.specs.model import ModelSpec
from model_zoo.whole import load_whole


def export_hf(spec: ModelSpec, state: Mapping[str, Tensor], out_dir: Path) -> Path:
    """Write a whole model in the Hugging Face layout; return `out_dir`.

    Each file appears complete or not at all; the weights come last.

    Args:
        spec: the model.
        state: its parameters by name.
        out_dir: the folder, created if needed.

    Raises:
        ValueError: the state is not that of a whole model of this spec.
        OSError: the folder cannot be written; older files there are unchanged.
    """
    whole = load_whole(spec, state).state_dict()
    kind = family(spec)
    tensors = kind.to_hugging_face(spec, whole)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    config = kind.hugging_face_config(spec)
    out_dir.mkdir(parents=True, exist_ok=True)
    with _replacing(out_dir / "config.json") as partial:
        partial.write_text(json.dumps(_COMMON | config, indent=2) + "\n")
    with _replacing(out_dir / "model.safetensors") as partial:
        save_file(contiguous, partial, metadata={"format": "pt"})
    return out_dir


_COMMON: dict[str, Any] = {
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": None,
}


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write beside `path`; it takes the place of `path` once it is safely on disk."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

"""Writes a GGUF file, by the `gguf` package of llama.cpp's authors.

Tensors are made and written one at a time, so that a second copy of the model is never in memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_zoo.huggingface.dtypes import TORCH, DType
from model_zoo.huggingface.filling import filling
from model_zoo.llama_cpp.architecture import NotInGguf, keys
from model_zoo.llama_cpp.tensors import is_always_fp32, tensors
from model_zoo.llama_cpp.vocabulary import vocabulary
from model_zoo.specs.family import Keys
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.packages import load
from model_zoo.tokenizers.bpe import Bpe

_TYPES: Final = {
    "fp32": ("F32", "ALL_F32"),
    "bf16": ("BF16", "MOSTLY_BF16"),
    "fp16": ("F16", "MOSTLY_F16"),
}
"""What tensors and whole files of a type are called."""


def export_gguf(
    spec: ModelSpec,
    state: Mapping[str, Tensor],
    path: Path,
    tokenizer: Bpe,
    dtype: DType = "fp32",
    name: str = "",
) -> Path:
    """Write a whole model as one file that llama.cpp loads; return ``path``.

    The file appears complete or not at all.

    Args:
        spec: the model.
        state: its parameters by name.
        path: the file; its folder is created if needed.
        tokenizer: what made the model's tokens, `byte_tokenizer()` where they are bytes.
        dtype: type of the matrices; vectors are in fp32.
        name: of the model, for people.

    Raises:
        MissingPackage: the gguf package is not installed.
        NotInGguf: llama.cpp cannot compute or tokenize as this model does.
        ValueError: the state is not that of a whole model of this spec.
        OSError: the file cannot be written; an older one is unchanged.
    """
    gguf = load("gguf")
    metadata: Keys = {"general.type": "model", "general.name": name}
    metadata |= {"general.file_type": int(gguf.LlamaFileType[_TYPES[dtype][1]])}
    metadata |= keys(spec) | vocabulary(tokenizer, spec.vocab)
    with filling(path.parent) as made:
        writer = gguf.GGUFWriter(None, metadata["general.architecture"])
        for key, value in metadata.items():
            _add(gguf, writer, key, value)
        for each, tensor in tensors(spec, state):
            kind = _kind(each, tensor, dtype)
            size = tensor.numel() * TORCH[kind].itemsize
            stored = gguf.GGMLQuantizationType[_TYPES[kind][0]]
            writer.add_tensor_info(each, tuple(tensor.shape), np.dtype(np.uint16), size, stored)
        try:
            writer.write_header_to_file(made / path.name)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for each, tensor in tensors(spec, state):
                writer.write_tensor_data(_numbers(each, tensor, dtype))
        finally:
            writer.close()
    return path


def _add(gguf: Any, writer: Any, key: str, value: object) -> None:
    types = gguf.GGUFValueType
    of_list = {str: types.STRING, int: types.INT32, float: types.FLOAT32}
    if isinstance(value, list):
        writer.add_key_value(key, value, types.ARRAY, of_list[type(value[0])])
    elif key != "general.architecture":  # which the writer has added
        kinds = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING}
        writer.add_key_value(key, value, kinds[type(value)])


def _kind(name: str, tensor: Tensor, dtype: DType) -> DType:
    return "fp32" if is_always_fp32(name, tensor) else dtype


def _numbers(name: str, tensor: Tensor, dtype: DType) -> NDArray[Any]:
    kind = TORCH[_kind(name, tensor, dtype)]
    converted = tensor.detach().to(kind).contiguous()
    if kind == torch.float16 and not bool(converted.isfinite().all()):
        raise NotInGguf(f"{name} has numbers beyond fp16: --dtype bf16 has room for them")
    plain = converted.view(torch.int16) if kind == torch.bfloat16 else converted
    found: NDArray[Any] = plain.numpy()
    return found

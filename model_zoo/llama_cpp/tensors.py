"""The tensors of a model as llama.cpp names and arranges them.

Names are those of its authors' package. Shapes are the same on both sides; D is the head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from model_zoo.huggingface.stored import tensor_shapes, zeros
from model_zoo.llama_cpp.architecture import NotInGguf, architecture, rotates_neighbours
from model_zoo.llama_cpp.package import load_gguf
from model_zoo.models.llama import scaled
from model_zoo.specs.model import ModelSpec

Named = Iterator[tuple[str, Tensor]]
_ROTATED: Final = ("q_proj", "k_proj")
_ALWAYS_FP32: Final = ("position_embd.weight", "ffn_gate_inp.weight")
"""llama.cpp's operations on them have no other type."""


def is_always_fp32(name: str, tensor: Tensor) -> bool:
    """Whether llama.cpp needs a tensor of theirs in fp32, whatever the matrices are in."""
    return tensor.ndim == 1 or name.endswith(_ALWAYS_FP32)


def tensors(spec: ModelSpec, state: Mapping[str, Tensor]) -> Named:
    """Yield their tensors, each made of ours when it is asked for.

    Args:
        spec: the model.
        state: its parameters by name.

    Raises:
        ValueError: the state is not that of a whole model of this spec.
        NotInGguf: llama.cpp has no such model.
    """
    names = _names(spec)
    for name, shape in tensor_shapes(spec).items():
        if name not in state or tuple(state[name].shape) != shape:
            raise ValueError(f"{name} is missing in the state, or has another shape")
        tensor = state[name]
        if name.endswith(".gate_up_proj"):
            for side, part in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                yield names(name.replace("gate_up", side) + ".weight"), part
            continue
        exchanged = rotates_neighbours(spec) and any(f".{part}." in name for part in _ROTATED)
        whole = name if shape[2:] == () else f"{name}.weight"
        yield names(whole), neighbours(tensor, spec.head_width) if exchanged else tensor
    if spec.tied:  # some of its models would find it themselves, and others not
        yield "output.weight", state[spec.token_embedding]
    yield from ((names(name), torch.zeros(shape)) for name, shape in zeros(spec).items())
    if spec.rope is not None and spec.rope.kind == "llama3":
        steps = torch.arange(0, spec.head_width, 2).float()
        angles = 1.0 / spec.rope_theta ** (steps / spec.head_width)  # (D / 2)
        yield "rope_freqs.weight", angles / scaled(angles, spec.rope)  # they divide by it


def _names(spec: ModelSpec) -> Callable[[str], str]:
    """Return what says llama.cpp's name of a parameter."""
    gguf = load_gguf()
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(kinds[architecture(spec)], spec.layers)

    def of(name: str) -> str:
        found: str | None = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise NotInGguf(f"llama.cpp has no name for {name}")
        return found

    return of


def neighbours(rows: Tensor, head_width: int) -> Tensor:
    """Return rows (H D, ...) so that rows i and i + D/2 of each head are beside one another."""
    halves = rows.view(-1, 2, head_width // 2, *rows.shape[1:])  # (H, 2, D / 2, ...)
    return halves.transpose(1, 2).reshape(rows.shape)

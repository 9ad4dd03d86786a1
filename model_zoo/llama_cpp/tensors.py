"""The tensors of a model as llama.cpp names and arranges them.

Names are those of its authors' package. Shapes are the same on both sides; D is the head width.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from model_zoo.huggingface.stored import tensor_shapes, zeros
from model_zoo.llama_cpp.architecture import NotInGguf, architecture
from model_zoo.models.llama import frequencies
from model_zoo.specs.architecture import Rope
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.packages import load

Named = Iterator[tuple[str, Tensor]]
_ROTATED: Final = ("q_proj", "k_proj")
_ALWAYS_FP32: Final = ("position_embd.weight", "ffn_gate_inp.weight")
"""llama.cpp's operations on them have no other type."""


def is_always_fp32(name: str, tensor: Tensor) -> bool:
    """Whether llama.cpp needs a tensor of theirs in fp32, whatever the matrices are in."""
    return tensor.ndim == 1 or name.endswith(_ALWAYS_FP32)


def tensors(spec: ModelSpec, state: Mapping[str, Tensor]) -> Named:
    """Yield their tensors, each made of ours in ``state`` when it is asked for.

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
        whole = name if shape[2:] == () else f"{name}.weight"
        yield names(whole), _arranged(spec, name, tensor)
    # some of its models would find it themselves, and others not
    if spec.tied and not spec.facts.always_tied:
        yield "output.weight", state[spec.token_embedding]
    yield from ((names(name), torch.zeros(shape)) for name, shape in zeros(spec).items())
    if spec.rope.kind == "llama3":
        plain, scaled = (
            frequencies(rope, spec.rope_theta, spec.head_width)  # (D / 2)
            for rope in (Rope(), spec.rope)
        )
        yield "rope_freqs.weight", plain / scaled  # they divide by it


def _arranged(spec: ModelSpec, name: str, tensor: Tensor) -> Tensor:
    """Return a parameter as llama.cpp has it."""
    facts = spec.facts
    if facts.rotates_neighbours and any(f".{part}." in name for part in _ROTATED):
        return neighbours(tensor, spec.head_width)
    if name.endswith(facts.by_heads):
        heads = tensor.view(spec.heads, 3, spec.head_width, *tensor.shape[1:])
        return heads.transpose(0, 1).reshape(tensor.shape)
    is_gain = tensor.ndim == 1 and name.endswith("norm.weight")
    return tensor + 1 if is_gain and not facts.first_gain else tensor  # there gains begin with 1


def _names(spec: ModelSpec) -> Callable[[str], str]:
    """Return what says llama.cpp's name of a parameter."""
    gguf = load("gguf")
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

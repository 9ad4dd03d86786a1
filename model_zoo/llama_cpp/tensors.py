"""The tensors of a model as llama.cpp names and arranges them, made of ours.

Shapes: C width, H heads, D head width, E experts, F inner width of an expert. Matrices have the
same rows and columns on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from model_zoo.huggingface.layout import tensor_shapes
from model_zoo.llama_cpp.architecture import rotates_neighbours
from model_zoo.models.llama import scaled
from model_zoo.specs.model import ModelSpec

Named = Iterator[tuple[str, Tensor]]
_ENDS: Final = {
    "embed.token": "token_embd",
    "embed.position": "position_embd",
    "head.norm": "output_norm",
    "head.proj": "output",
}
_OF_BLOCK: Final = {
    "attn_norm": "attn_norm",
    "attn.qkv": "attn_qkv",
    "attn.out": "attn_output",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn.router": "ffn_gate_inp",
}
_NORMS_AFTER: Final = {"attn_norm": "post_attention_norm", "ffn_norm": "post_ffw_norm"}
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
    exchanged = rotates_neighbours(spec)
    for name, shape in tensor_shapes(spec).items():
        if name not in state or tuple(state[name].shape) != shape:
            raise ValueError(f"{name} is missing in the state, or has another shape")
        yield from _theirs(spec, name, state[name], exchanged)
    if spec.tied:  # some of its models would find it themselves, and others not
        yield "output.weight", state["embed.token.weight"]
    if spec.architecture == "gpt" and not spec.bias:
        yield from _zeros(spec)
    if spec.rope is not None and spec.rope.kind == "llama3":
        steps = torch.arange(0, spec.head_width, 2).float()
        angles = 1.0 / spec.rope_theta ** (steps / spec.head_width)  # (D / 2)
        yield "rope_freqs.weight", angles / scaled(angles, spec.rope)  # they divide by it


def _theirs(spec: ModelSpec, name: str, tensor: Tensor, exchanged: bool) -> Named:
    part, _, kind = name.rpartition(".")  # kind: weight or bias
    if not part.startswith("blocks."):
        yield f"{_ENDS[part]}.{kind}", tensor
        return
    _, layer, part = part.split(".", 2)
    prefix = f"blk.{layer}."
    if part == "attn.qkv" and spec.architecture != "gpt":
        rows = [heads * spec.head_width for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
        for letter, matrix in zip("qkv", torch.split(tensor, rows), strict=True):
            moved = neighbours(matrix, spec.head_width) if exchanged and letter in "qk" else matrix
            yield f"{prefix}attn_{letter}.{kind}", moved
    elif part == "ffn.gate_up":
        sides = tensor.view(spec.experts_per_layer, 2, spec.ffn_width, -1)  # (E, 2, F, C)
        yield f"{prefix}ffn_gate_exps.{kind}", sides[:, 0]
        yield f"{prefix}ffn_up_exps.{kind}", sides[:, 1]
    elif part == "ffn.down" and spec.experts is not None:
        yield f"{prefix}ffn_down_exps.{kind}", tensor.view(spec.experts.count, spec.width, -1)
    else:
        names = _OF_BLOCK | _NORMS_AFTER if spec.post_norm else _OF_BLOCK
        yield f"{prefix}{names[part]}.{kind}", tensor


def neighbours(rows: Tensor, head_width: int) -> Tensor:
    """Return rows (H D, ...) so that rows i and i + D/2 of each head are beside one another."""
    halves = rows.view(-1, 2, head_width // 2, *rows.shape[1:])  # (H, 2, D / 2, ...)
    return halves.transpose(1, 2).reshape(rows.shape)


def _zeros(spec: ModelSpec) -> Named:
    """The biases that their GPT-2 always has."""
    widths = {"attn_norm": 1, "attn_qkv": 3, "attn_output": 1, "ffn_norm": 1, "ffn_down": 1}
    yield "output_norm.bias", torch.zeros(spec.width)
    for layer in range(spec.layers):
        for part, times in widths.items():
            yield f"blk.{layer}.{part}.bias", torch.zeros(times * spec.width)
        yield f"blk.{layer}.ffn_up.bias", torch.zeros(spec.ffn_width)

"""How the parameters of a model lie in files of `transformers`: under the same names.

Only two are written otherwise: the experts of a layer one by one, and GPT-2's matrices transposed.
"""

from __future__ import annotations

from msgspec.structs import replace

from model_zoo.specs.architecture import Tensors
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import stage_tensors, whole_slice

_EXPERTS = ".experts."
_MIXTRAL = "w1", "w3", "w2"
_OTHERS = "gate_proj", "up_proj", "down_proj"
"""Names of an expert's gate, up and down matrices."""


def tensor_shapes(spec: ModelSpec) -> Tensors:
    """Return the shapes of all parameters of a whole model, in the model's order, without those of
    adapters."""
    return stage_tensors(spec.base, whole_slice(spec))


def stored_shapes(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Tensors:
    """Return the tensors of the files that make up a parameter, in the order of its rows."""
    if spec.experts is None or ".mlp." not in name:
        return {name: shape[::-1] if is_transposed(spec, name) else shape}
    mixtral = spec.qk_norm is None
    stem = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
    before, _, matrices = stem.partition(_EXPERTS)
    if not matrices:  # the router
        return {stem: shape}
    gate, up, down = _MIXTRAL if mixtral else _OTHERS
    parts = [down] if matrices == "down_proj" else [gate, up]
    each = shape[1] // len(parts), shape[2]
    experts = (f"{before}{_EXPERTS}{expert}" for expert in range(shape[0]))
    return {f"{expert}.{part}.weight": each for expert in experts for part in parts}


def is_transposed(spec: ModelSpec, name: str) -> bool:
    """Whether files have a parameter with rows and columns exchanged."""
    return name.startswith(spec.layers_prefix) and name.endswith(spec.facts.transposed)


def zeros(spec: ModelSpec) -> Tensors:
    """Return the parameters that their model has and ours lacks, because they are zero."""
    if spec.architecture != "gpt" or spec.bias:
        return {}
    shapes = tensor_shapes(replace(spec, bias=True))
    return {name: shape for name, shape in shapes.items() if name.endswith(".bias")}

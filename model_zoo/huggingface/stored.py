"""How the parameters of a model lie in files of `transformers`: under the same names.

Few are written otherwise: the experts of a layer one by one, and GPT-2's matrices transposed.
"""

from msgspec.structs import replace

from model_zoo.specs.family import OUTPUT, Tensors
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import stage_tensors, whole_slice

_EXPERTS = ".experts."


def tensor_shapes(spec: ModelSpec) -> Tensors:
    """Return the shapes of all parameters of a whole model, in the model's order, without those of
    adapters."""
    return stage_tensors(spec.base, whole_slice(spec))


def stored_shapes(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Tensors:
    """Return the tensors of the files that make up a parameter, in the order of its rows."""
    if spec.experts is None or ".mlp." not in name:
        stored = name.replace(OUTPUT, spec.facts.output)
        return {stored: shape[::-1] if is_transposed(spec, name) else shape}
    mixture, gate, up, down = spec.facts.expert_names
    stem = name.replace(".mlp.", f".{mixture}.")
    before, _, matrices = stem.partition(_EXPERTS)
    if not matrices:  # the router
        return {stem: shape}
    parts = [down] if matrices == "down_proj" else [gate, up]
    each = shape[1] // len(parts), shape[2]
    experts = (f"{before}{_EXPERTS}{expert}" for expert in range(shape[0]))
    return {f"{expert}.{part}.weight": each for expert in experts for part in parts}


def is_transposed(spec: ModelSpec, name: str) -> bool:
    """Whether files have a parameter with rows and columns exchanged."""
    return name.startswith(spec.layers_prefix) and name.endswith(spec.facts.transposed)


def zeros(spec: ModelSpec) -> Tensors:
    """Return the parameters that their model has and ours lacks, because they are zero."""
    if "bias" not in spec.facts.switches or spec.bias:  # a choice here, and always there
        return {}
    shapes = tensor_shapes(replace(spec, bias=True))
    return {name: shape for name, shape in shapes.items() if name.endswith(".bias")}

"""The tensors of a model as `transformers` names and arranges them, beside ours.

One table goes both ways: an import joins their tensors to ours, an export cuts ours into theirs.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from model_zoo.specs.architecture import Tensors
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import stage_tensors, whole_slice


@dataclass(frozen=True, slots=True)
class Theirs:
    """Where one of our tensors is in their model.

    Fields:
        parts: names of their tensors and the rows that each gives, one after the other.
        transposed: whether theirs has rows and columns exchanged.
    """

    parts: tuple[tuple[str, int], ...]
    transposed: bool = False

    def shapes(self, ours: tuple[int, ...]) -> Tensors:
        """Return the shapes of their tensors, where our tensor has this one."""
        if self.transposed:
            return {name: (ours[1], rows) for name, rows in self.parts}
        return {name: (rows, *ours[1:]) for name, rows in self.parts}


Layout = dict[str, Theirs]
"""By the names of all our parameters, in the model's order."""

_LLAMA = {
    "embed.token": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.proj": "lm_head",
    "attn_norm": "input_layernorm",
    "attn.out": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_MIXTURE = {"router": "mlp.gate", "expert": "mlp.experts.{}.{}_proj"}
_MIXTRAL = {"router": "block_sparse_moe.gate", "expert": "block_sparse_moe.experts.{}.{}"}
_MIXTRAL_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}
_NORMS_AFTER = {"attn_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm"}
_GPT = {
    "embed.token": "transformer.wte",
    "embed.position": "transformer.wpe",
    "head.norm": "transformer.ln_f",
    "head.proj": "lm_head",
    "attn_norm": "ln_1",
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up": "mlp.c_fc",
    "ffn.down": "mlp.c_proj",
}


def layout(spec: ModelSpec) -> Layout:
    """Return where each parameter of a whole model is in theirs."""
    shapes = tensor_shapes(spec)
    return {name: _theirs(spec, name, shape) for name, shape in shapes.items()}


def tensor_shapes(spec: ModelSpec) -> Tensors:
    """Return the shapes of all parameters of a whole model, in the model's order, without those of
    adapters."""
    return stage_tensors(spec.base, whole_slice(spec))


def zeros(spec: ModelSpec) -> Tensors:
    """Return the shapes of the tensors that theirs has and ours lacks, because they are zero."""
    if spec.architecture != "gpt" or spec.bias:
        return {}
    shapes = tensor_shapes(replace(spec, bias=True))
    biases = {name: shape for name, shape in shapes.items() if name.endswith(".bias")}
    return {_theirs(spec, name, s).parts[0][0]: s for name, s in biases.items()}


def _theirs(spec: ModelSpec, name: str, shape: tuple[int, ...]) -> Theirs:
    gpt = spec.architecture == "gpt"
    part, _, kind = name.rpartition(".")  # kind: weight or bias
    prefix = ""
    if part.startswith("blocks."):
        _, layer, part = part.split(".", 2)
        prefix = f"transformer.h.{layer}." if gpt else f"model.layers.{layer}."
    if gpt:
        is_conv1d = bool(prefix) and kind == "weight" and len(shape) == 2  # (inputs, outputs)
        return Theirs(((f"{prefix}{_GPT[part]}.{kind}", shape[0]),), is_conv1d)
    if part == "attn.qkv":  # rows need no permutation: both sides rotate pairs (i, i + D/2)
        rows = [heads * spec.head_width for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
        named = zip("qkv", rows, strict=True)
        return Theirs(tuple((f"{prefix}self_attn.{q}_proj.{kind}", count) for q, count in named))
    if part.startswith("ffn.") and spec.experts is not None:
        return _of_experts(spec, prefix, part.removeprefix("ffn."), shape[0])
    names = _LLAMA | _NORMS_AFTER if spec.post_norm else _LLAMA
    return Theirs(((f"{prefix}{names[part]}.{kind}", shape[0]),))


def _of_experts(spec: ModelSpec, prefix: str, part: str, rows: int) -> Theirs:
    """The router; or of every expert, below one another, its gate and up, or its down."""
    mixtral = spec.qk_norm is None
    names = _MIXTRAL if mixtral else _MIXTURE
    if part == "router":
        return Theirs(((f"{prefix}{names[part]}.weight", rows),))
    matrices = [_MIXTRAL_PARTS[each] if mixtral else each for each in part.split("_")]
    form, count = f"{prefix}{names['expert']}.weight", spec.experts_per_layer
    given = rows // count // len(matrices)
    each = ((expert, matrix) for expert in range(count) for matrix in matrices)
    return Theirs(tuple((form.format(*place), given) for place in each))

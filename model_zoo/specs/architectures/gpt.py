"""GPT as nanoGPT trains it; the modules are in `model_zoo.models.gpt`."""

from typing import ClassVar

from model_zoo.specs.architecture import Architecture, Shape, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision


class Gpt(Architecture):
    """Pre-LayerNorm blocks, learned positions, GELU, optional biases."""

    switches = frozenset({"bias", "norm_eps", "gelu", "tied", "lora"})
    decoder, layers, tokens = "transformer", "h", "wte.weight"
    usual_targets = ("attn.c_attn",)
    residual_outputs = ("c_proj.weight",)
    fused: ClassVar = {"attn.c_attn.weight": 3}
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

    def problem(self, shape: Shape) -> str | None:
        """See `Architecture`."""
        if shape.kv_heads != shape.heads:
            return f"gpt needs kv_heads == heads, got {shape.kv_heads} and {shape.heads}"
        return None

    def embedding(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return {
            "wte.weight": (shape.vocab, shape.width),
            "wpe.weight": (shape.context, shape.width),
        }

    def block(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        width, inner, bias = shape.width, shape.ffn_width, shape.bias
        return {
            **norm("ln_1", width, bias=bias),
            **linear("attn.c_attn", 3 * width, width, bias=bias),
            **linear("attn.c_proj", width, width, bias=bias),
            **norm("ln_2", width, bias=bias),
            **linear("mlp.c_fc", inner, width, bias=bias),
            **linear("mlp.c_proj", width, inner, bias=bias),
        }

    def final_norm(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return norm("ln_f", shape.width, bias=shape.bias)

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        """See `Architecture`."""
        spelt_out = 4 if shape.gelu == "new" and precision == "fp32" else 0
        return 9 * shape.width + (2 + spelt_out) * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        """See `Architecture`."""
        return 4 * width

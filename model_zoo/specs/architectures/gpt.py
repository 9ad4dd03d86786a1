"""GPT as nanoGPT trains it; the modules are in `model_zoo.models.gpt`."""

from model_zoo.specs.architecture import (
    Architecture,
    LinearPart,
    Shape,
    Tensors,
    fused_qkv,
    linear,
    norm,
    projection,
)
from model_zoo.specs.precision import DEFAULT, Precision


class Gpt(Architecture):
    """Pre-LayerNorm blocks, learned positions, GELU, optional biases."""

    switches = frozenset({"bias", "norm_eps", "gelu", "tied", "lora"})
    usual_targets = ("c_attn",)
    residual_outputs = ("attn.out.weight", "ffn.down.weight")

    def problem(self, shape: Shape) -> str | None:
        """See `Architecture`."""
        if shape.kv_heads != shape.heads:
            return f"gpt needs kv_heads == heads, got {shape.kv_heads} and {shape.heads}"
        return None

    def embedding(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return {
            "token.weight": (shape.vocab, shape.width),
            "position.weight": (shape.context, shape.width),
        }

    def block(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        width, inner, bias = shape.width, shape.ffn_width, shape.bias
        return {
            **norm("attn_norm", width, bias=bias),
            **linear("attn.qkv", shape.qkv_width, width, bias=bias),
            **linear("attn.out", width, width, bias=bias),
            **norm("ffn_norm", width, bias=bias),
            **linear("ffn.up", inner, width, bias=bias),
            **linear("ffn.down", width, inner, bias=bias),
        }

    def head(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return norm("norm", shape.width, bias=shape.bias) | projection(shape)

    def linear_parts(self, shape: Shape) -> dict[str, LinearPart]:
        """See `Architecture`."""
        width, inner = shape.width, shape.ffn_width
        return {
            "c_attn": LinearPart("attn.qkv", 0, shape.qkv_width, width),
            "attn.c_proj": LinearPart("attn.out", 0, width, width),
            "c_fc": LinearPart("ffn.up", 0, inner, width),
            "mlp.c_proj": LinearPart("ffn.down", 0, width, inner),
        }

    def stacked(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """See `Architecture`."""
        return {"attn.qkv.weight": fused_qkv(shape)}

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        """See `Architecture`."""
        spelt_out = 4 if shape.gelu == "new" and precision == "fp32" else 0
        return 9 * shape.width + (2 + spelt_out) * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        """See `Architecture`."""
        return 4 * width

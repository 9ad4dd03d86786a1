"""GPT as nanoGPT trains it; the modules are in `model_zoo.models.gpt`."""

from model_zoo.specs.architecture import Architecture, Shape, Tensors, linear, norm


class Gpt(Architecture):
    """Pre-LayerNorm blocks, learned positions, GELU, optional biases."""

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
        width, inner, bias = shape.width, shape.ffn_width, shape.has_bias
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
        projection = linear("proj", shape.vocab, shape.width)
        return norm("norm", shape.width, bias=shape.has_bias) | projection

    def saved_per_token(self, shape: Shape) -> int:
        """See `Architecture`."""
        return 9 * shape.width + 2 * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        """See `Architecture`."""
        return 4 * width

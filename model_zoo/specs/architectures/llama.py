"""A Llama-style model; the modules are in `model_zoo.models.llama`."""

from model_zoo.specs.architecture import Architecture, Shape, Tensors, linear, norm


class Llama(Architecture):
    """RMSNorm, rotary positions, SwiGLU, grouped queries, no biases."""

    residual_outputs = ("attn.out.weight", "ffn.down.weight")

    def problem(self, shape: Shape) -> str | None:
        """See `Architecture`."""
        if shape.heads % shape.kv_heads:
            return f"heads {shape.heads} is not a multiple of kv_heads {shape.kv_heads}"
        if shape.head_width % 2:
            return f"rotary positions need an even head width, got {shape.head_width}"
        if not 1.0 < shape.rope_theta < 1e12:
            return f"rope_theta must lie between 1 and 1e12, got {shape.rope_theta!r}"
        return "llama has no biases; leave bias out" if shape.has_bias else None

    def embedding(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return {"token.weight": (shape.vocab, shape.width)}

    def block(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        width, inner = shape.width, shape.ffn_width
        return {
            **norm("attn_norm", width),
            **linear("attn.qkv", shape.qkv_width, width),
            **linear("attn.out", width, width),
            **norm("ffn_norm", width),
            **linear("ffn.gate", inner, width),
            **linear("ffn.up", inner, width),
            **linear("ffn.down", width, inner),
        }

    def head(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return norm("norm", shape.width) | linear("proj", shape.vocab, shape.width)

    def saved_per_token(self, shape: Shape) -> int:
        """See `Architecture`."""
        return 14 * shape.width + 4 * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        """8/3 of the width, because there are three matrices, rounded up to a multiple of 32."""
        return -(-8 * width // 96) * 32

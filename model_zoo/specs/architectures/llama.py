"""A Llama-style model and its relatives; the modules are in `model_zoo.models.llama`."""

from typing import ClassVar

from model_zoo.specs.architecture import Architecture, Shape, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision


class Llama(Architecture):
    """RMSNorm, rotary positions, SwiGLU, grouped queries, and the switches of its relatives."""

    switches = frozenset(
        {
            "norm_eps",
            "head_dim",
            "rope",
            "qk_norm",
            "qkv_bias",
            "window",
            "nope_every",
            "post_norm",
            "max_context",
            "experts",
            "tied",
            "lora",
        }
    )
    decoder, layers, tokens = "model", "layers", "embed_tokens.weight"
    usual_targets = ("self_attn.q_proj", "self_attn.v_proj")
    residual_outputs = ("o_proj.weight", "down_proj.weight", "down_proj")
    fused: ClassVar = {"mlp.experts.gate_up_proj": 2}

    def problem(self, shape: Shape) -> str | None:
        """See `Architecture`."""
        if shape.heads % shape.kv_heads:
            return f"heads {shape.heads} is not a multiple of kv_heads {shape.kv_heads}"
        if shape.head_width % 2:
            return f"rotary positions need an even head width, got {shape.head_width}"
        if not 1.0 < shape.rope_theta < 1e12:
            return f"rope_theta must lie between 1 and 1e12, got {shape.rope_theta!r}"
        return None

    def embedding(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return {"embed_tokens.weight": (shape.vocab, shape.width)}

    def block(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        other = "post_feedforward_layernorm" if shape.post_norm else "input_layernorm"
        norms = norm("post_attention_layernorm", shape.width) | norm(other, shape.width)
        return norms | _attention(shape) | _feed_forward(shape)

    def final_norm(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return norm("norm", shape.width)

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        """See `Architecture`."""
        wider = max(0, shape.joined_width - shape.width)
        normed = 0 if shape.qk_norm is None else 2 * (shape.heads + shape.kv_heads)
        attention = 5 * wider + normed * shape.head_width
        experts, routed = shape.experts_per_token, 0
        if shape.experts is not None:  # a copy of each token for each expert, back again, weighted
            routed = experts * (3 * shape.width + 8) + 4 * shape.experts.count
        return 14 * shape.width + attention + 4 * experts * shape.ffn_width + routed

    def idle_per_token(self, shape: Shape) -> int:
        """See `Architecture`."""
        unused = shape.experts_per_layer - shape.experts_per_token
        return 3 * unused * shape.ffn_width * shape.width

    def usual_ffn_width(self, width: int) -> int:
        """8/3 of the width, because there are three matrices, rounded up to a multiple of 32."""
        return -(-8 * width // 96) * 32


def _attention(shape: Shape) -> Tensors:
    width, bias = shape.width, shape.qkv_bias
    query, key = (heads * shape.head_width for heads in (shape.heads, shape.kv_heads))
    found = {
        **linear("self_attn.q_proj", query, width, bias=bias),
        **linear("self_attn.k_proj", key, width, bias=bias),
        **linear("self_attn.v_proj", key, width, bias=bias),
        **linear("self_attn.o_proj", width, query),
    }
    if shape.qk_norm is None:
        return found
    if shape.qk_norm == "head":
        query = key = shape.head_width
    return found | norm("self_attn.q_norm", query) | norm("self_attn.k_norm", key)


def _feed_forward(shape: Shape) -> Tensors:
    width, inner = shape.width, shape.ffn_width
    if shape.experts is None:
        sides = linear("mlp.gate_proj", inner, width) | linear("mlp.up_proj", inner, width)
        return sides | linear("mlp.down_proj", width, inner)
    count = shape.experts.count
    return {
        **linear("mlp.gate", count, width),
        "mlp.experts.gate_up_proj": (count, 2 * inner, width),
        "mlp.experts.down_proj": (count, width, inner),
    }

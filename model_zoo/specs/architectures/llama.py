"""A Llama-style model and its relatives; the modules are in `model_zoo.models.llama`."""

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
    usual_targets = ("q_proj", "v_proj")
    residual_outputs = ("attn.out.weight", "ffn.down.weight")

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
        return {"token.weight": (shape.vocab, shape.width)}

    def block(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        width = shape.width
        return {
            **norm("attn_norm", width),
            **linear("attn.qkv", shape.qkv_width, width, bias=shape.qkv_bias),
            **linear("attn.out", width, shape.joined_width),
            **_qk_norms(shape),
            **norm("ffn_norm", width),
            **_feed_forward(shape),
        }

    def head(self, shape: Shape) -> Tensors:
        """See `Architecture`."""
        return norm("norm", shape.width) | projection(shape)

    def linear_parts(self, shape: Shape) -> dict[str, LinearPart]:
        """See `Architecture`."""
        width, inner = shape.width, shape.ffn_width
        query, key = (heads * shape.head_width for heads in (shape.heads, shape.kv_heads))
        return {
            "q_proj": LinearPart("attn.qkv", 0, query, width),
            "k_proj": LinearPart("attn.qkv", query, key, width),
            "v_proj": LinearPart("attn.qkv", query + key, key, width),
            "o_proj": LinearPart("attn.out", 0, width, shape.joined_width),
            "gate_proj": LinearPart("ffn.gate", 0, inner, width),
            "up_proj": LinearPart("ffn.up", 0, inner, width),
            "down_proj": LinearPart("ffn.down", 0, width, inner),
        }

    def stacked(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        """See `Architecture`."""
        found = {"attn.qkv.weight": fused_qkv(shape)}
        if shape.experts is None:
            return found
        count = shape.experts.count
        gate_up, down = (shape.ffn_width,) * 2 * count, (shape.width,) * count
        return {**found, "ffn.gate_up.weight": gate_up, "ffn.down.weight": down}

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


def _feed_forward(shape: Shape) -> Tensors:
    width, inner = shape.width, shape.ffn_width
    if shape.experts is None:
        sides = linear("ffn.gate", inner, width) | linear("ffn.up", inner, width)
        return sides | linear("ffn.down", width, inner)
    count = shape.experts.count
    sides = linear("ffn.gate_up", count * 2 * inner, width)
    return linear("ffn.router", count, width) | sides | linear("ffn.down", count * width, inner)


def _qk_norms(shape: Shape) -> Tensors:
    if shape.qk_norm is None:
        return {}
    whole = shape.qk_norm == "projection"
    query, key = (heads if whole else 1 for heads in (shape.heads, shape.kv_heads))
    head_width = shape.head_width
    return norm("attn.q_norm", query * head_width) | norm("attn.k_norm", key * head_width)

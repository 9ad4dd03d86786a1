"""Llama: RMSNorm, rotary positions, SwiGLU, grouped queries, no biases; and all its relatives.

These are families of their own, each of which says what it has otherwise.
"""

from typing import Any, ClassVar, Literal

from model_zoo.specs.architecture import MOST_HEAD_DIM, Rope, Shape
from model_zoo.specs.family import Family, Keys, Size, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.settings import (
    Config,
    count,
    number,
    only,
    read_rope,
    rope_settings,
    write_rope,
)

COMMON = frozenset({"norm_eps", "rope", "max_context", "tied", "lora"})
"""Switches of all relatives."""
BEFORE = ("input_layernorm", None, "post_attention_layernorm", None)
AFTER = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
BOTH = (
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
)
"""Where norms are; see `LlamaLike.norms`."""
YARN_HIGH = 32.0
"""What llama.cpp has for `Rope.high`; for `Rope.low`: 1."""


class LlamaLike(Family):
    """What Llama and its relatives have in common, and where these differ."""

    model = "llama"
    decoder, layers, tokens = "model", "layers", "embed_tokens.weight"
    usual_targets: ClassVar[tuple[str, ...]] = ("self_attn.q_proj", "self_attn.v_proj")
    residual_outputs: ClassVar[tuple[str, ...]] = ("o_proj.weight", "down_proj.weight", "down_proj")

    biases: ClassVar[Literal["none", "qkv", "all"]] = "none"
    """Which of the attention's linear layers have them."""
    qk_norm: ClassVar[Literal["head", "projection"] | None] = None
    """Queries and keys are normalised, each head by itself or the whole projection."""
    norms: ClassVar[tuple[str | None, ...]] = BEFORE
    """Names of the norms of what attention takes and returns, and of what feed-forward does."""

    fixed: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    """Settings of a `config.json` with the one value that is supported."""
    ffn_key: ClassVar[str] = "intermediate_size"
    eps_key: ClassVar[str] = "rms_norm_eps"
    theta_key: ClassVar[str] = "rope_theta"
    gguf_eps: ClassVar[str] = "attention.layer_norm_rms_epsilon"
    usual_eps: ClassVar[float] = 1e-6
    usual_theta: ClassVar[float] = 10_000.0
    usual_head_dim: ClassVar[int | None] = None
    """What a file means that does not say; None: width / heads."""
    usual_window: ClassVar[int | None] = None
    partial: ClassVar[tuple[str, float] | None] = None
    """The setting for the share of each head that is rotated, and what a file means without it;
    None: heads are rotated whole."""

    def problem(self, shape: Shape) -> str | None:
        if shape.heads % shape.kv_heads:
            return f"heads {shape.heads} is not a multiple of kv_heads {shape.kv_heads}"
        rotated = shape.rope.dims or shape.head_width
        if rotated % 2 or rotated > shape.head_width:
            return f"rotary positions need an even head width, got {rotated}"
        if (shape.rope.dims is not None and self.partial is None) or (
            shape.rope.dims == shape.head_width
        ):
            return f"{self.name} rotates heads whole; leave rope.dims out"
        if not 1.0 < shape.rope_theta < 1e12:
            return f"rope_theta must lie between 1 and 1e12, got {shape.rope_theta!r}"
        if "experts" in self.switches and shape.experts is None:
            return f"{self.name} is a mixture of experts: begin with a preset of one"
        return None

    def block(self, shape: Shape) -> Tensors:
        norms: Tensors = {}
        for each in filter(None, self.norms):
            norms |= self.norm(each, shape.width)
        return norms | self.attention(shape) | self.feed_forward(shape)

    def final_norm(self, shape: Shape) -> Tensors:
        return self.norm("norm", shape.width)

    def norm(self, name: str, width: int) -> Tensors:
        """Return the parameters of a norm."""
        return norm(name, width)

    def attention(self, shape: Shape) -> Tensors:
        """Return the parameters of a layer's attention."""
        width, bias = shape.width, self.biases != "none"
        query, key = (heads * shape.head_width for heads in (shape.heads, shape.kv_heads))
        found = {
            **linear("self_attn.q_proj", query, width, bias=bias),
            **linear("self_attn.k_proj", key, width, bias=bias),
            **linear("self_attn.v_proj", key, width, bias=bias),
            **linear("self_attn.o_proj", width, query, bias=self.biases == "all"),
        }
        if self.qk_norm is None:
            return found
        if self.qk_norm == "head":
            query = key = shape.head_width
        return found | norm("self_attn.q_norm", query) | norm("self_attn.k_norm", key)

    def feed_forward(self, shape: Shape) -> Tensors:
        """Return the parameters of a layer's feed-forward part, or of its experts."""
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

    def fused(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        return {"mlp.experts.gate_up_proj": (shape.ffn_width,) * 2}

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        wider = max(0, shape.joined_width - shape.width)
        normed = 0 if self.qk_norm is None else 2 * (shape.heads + shape.kv_heads)
        attention = 5 * wider + normed * shape.head_width
        experts, routed = shape.experts_per_token, 0
        if shape.experts is not None:  # a copy of each token for each expert, back again, weighted
            routed = experts * (3 * shape.width + 8) + 4 * shape.experts.count
        return 14 * shape.width + attention + 4 * experts * shape.ffn_width + routed

    def idle_per_token(self, shape: Shape) -> int:
        unused = shape.experts_per_layer - shape.experts_per_token
        return 3 * unused * shape.ffn_width * shape.width

    def usual_ffn_width(self, width: int) -> int:
        """8/3 of the width, because there are three matrices, rounded up to a multiple of 32."""
        return -(-8 * width // 96) * 32

    def embedding_scale(self, shape: Shape) -> float:
        """Return the factor of what is looked up."""
        return shape.scales.embedding

    def read(self, config: Config, context: int | None) -> Shape:
        only(config, self.fixed)
        width, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
        usual = self.usual_head_dim or width // max(1, heads)
        head_dim = count(config, "head_dim", usual)
        own = count(config, "max_position_embeddings")
        if context is not None and context > own:
            raise ValueError(f"a context of {context} tokens is above the model's {own}")
        trained = context or own
        rope = rope_settings(config)
        return Shape(
            self.name,
            count(config, "num_hidden_layers"),
            width,
            heads,
            count(config, "num_key_value_heads", heads),
            count(config, self.ffn_key),
            trained,
            count(config, "vocab_size"),
            number(rope, "rope_theta", number(config, self.theta_key, self.usual_theta)),
            norm_eps=number(config, self.eps_key, self.usual_eps),
            head_dim=None if head_dim * heads == width else head_dim,
            rope=read_rope(rope, own, self._rotated(config, rope, head_dim)),
            max_context=own if own > trained else None,
            **self._read_window(config, own) | self.read_switches(config),
        )

    def read_switches(self, config: Config) -> dict[str, Any]:
        """Return the fields of a shape that only this family has.

        Raises:
            ValueError: as ``read``.
        """
        return {}

    def _read_window(self, config: Config, own: int) -> dict[str, int]:
        """Return the window where there is one, shorter than what a model takes."""
        if "window" not in self.switches or config.get("sliding_window", self.usual_window) is None:
            return {}
        window = count(config, "sliding_window", self.usual_window)
        return {"window": window} if window < own else {}

    def _rotated(self, config: Config, rope: Config, head_dim: int) -> int | None:
        """Return how many numbers of each head are rotated; None: all."""
        key, usual = self.partial or ("partial_rotary_factor", 1.0)
        share = number(rope, "partial_rotary_factor", number(config, key, usual))
        if not 0 < share <= 1 or not 0 < head_dim <= MOST_HEAD_DIM:
            raise ValueError(f"config.json: {key} {share!r} of {head_dim} is out of range")
        dims = int(head_dim * share)
        return None if dims == head_dim else dims

    def write(self, shape: Shape) -> dict[str, Any]:
        config = self.fixed | {
            "max_position_embeddings": shape.longest,
            "hidden_size": shape.width,
            self.ffn_key: shape.ffn_width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_width,
            self.eps_key: shape.norm_eps,
            self.theta_key: shape.rope_theta,
            "rope_scaling": write_rope(shape.rope) or None,
        }
        if self.partial is not None:
            config[self.partial[0]] = _share(shape.rope.dims or shape.head_width, shape.head_width)
        if "window" in self.switches:
            config["sliding_window"] = shape.window
        return config | self.write_switches(shape)

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        """Return the settings of what only this family has.

        Raises:
            ValueError: as ``write``.
        """
        return {}

    def gguf_problem(self, shape: Shape) -> str | None:
        rope = shape.rope
        if rope.kind == "llama3" and self.gguf != "llama":
            return "does not read the scaling of rotary angles that this model has, that of Llama 3"
        if rope.kind == "yarn" and (rope.low, rope.high, rope.magnitude) != (1.0, YARN_HIGH, None):
            return "scales rotary angles by YaRN with its usual numbers only"
        return None

    def gguf_keys(self, shape: Shape) -> Keys:
        found: Keys = {
            self.gguf_eps: shape.norm_eps,
            "attention.key_length": shape.head_width,
            "attention.value_length": shape.head_width,
            "rope.dimension_count": shape.rope.dims or shape.head_width,
            "rope.freq_base": shape.rope_theta,
        }
        if shape.rope.kind in ("linear", "yarn"):
            found |= {
                "rope.scaling.type": shape.rope.kind,
                "rope.scaling.factor": shape.rope.factor,
            }
        if shape.rope.kind == "yarn":
            found["rope.scaling.original_context_length"] = shape.rope.original
        if shape.experts is not None:
            found |= {
                "expert_count": shape.experts.count,
                "expert_used_count": shape.experts.active,
                "expert_feed_forward_length": shape.ffn_width,
            }
        return found


def _share(dims: int, head_width: int) -> float:
    """Return the share whose product with a head's size has ``dims`` as its whole part."""
    share = dims / head_width
    return share if int(head_width * share) == dims else (dims + 0.5) / head_width


class Llama(LlamaLike):
    """Llama 2 and 3, and SmolLM2."""

    name = model_type = gguf = "llama"
    class_name = "LlamaForCausalLM"
    switches = COMMON | {"head_dim"}
    sizes: ClassVar = {
        "smollm2-135m": Size(30, 576, 9, 3, 1536, 49_152, 1e5, lr=1e-3),
        "smollm2-360m": Size(32, 960, 15, 5, 2560, 49_152, 1e5, lr=1e-3),
        "smollm2-1.7b": Size(24, 2048, 32, 32, 8192, 49_152, 1.3e5, lr=5e-4),
        "llama-3.2-1b": Size(
            *(16, 2048, 32, 8, 8192, 128_256, 5e5),
            lr=4e-4,
            switches={"rope": Rope("llama3", 32.0)},
        ),
        "llama-3.2-3b": Size(
            *(28, 3072, 24, 8, 8192, 128_256, 5e5),
            lr=3e-4,
            switches={"rope": Rope("llama3", 32.0)},
        ),
        "llama-3.1-8b": Size(
            *(32, 4096, 32, 8, 14_336, 128_256, 5e5),
            lr=3e-4,
            tied=False,
            switches={"rope": Rope("llama3", 8.0)},
        ),
    }
    rotates_neighbours = True


FAMILY = Llama()

"""GPT-NeoX and Pythia: attention and feed-forward side by side, and a quarter of each head rotated.

The settings and angles are Llama's.
"""

from typing import ClassVar

from model_zoo.specs.architecture import Rope, Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Keys, Size, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision


class GptNeoX(LlamaLike):
    """See the module's docstring."""

    name = model = model_type = "gpt_neox"
    class_name, gguf = "GPTNeoXForCausalLM", "gptneox"
    switches = COMMON
    sizes: ClassVar = {
        "pythia-160m": Size(
            *(12, 768, 12, 12, 3072, 50_304, 1e4),
            lr=6e-4,
            tied=False,
            switches={"rope": Rope(dims=16)},
        ),
        "pythia-1.4b": Size(
            *(24, 2048, 16, 16, 8192, 50_304, 1e4),
            lr=2e-4,
            tied=False,
            switches={"rope": Rope(dims=32)},
        ),
    }
    decoder, tokens, output = "gpt_neox", "embed_in.weight", "embed_out"
    usual_targets = ("attention.query_key_value",)
    residual_outputs = ("dense.weight", "dense_4h_to_h.weight")
    by_heads = ("query_key_value.weight", "query_key_value.bias")
    partial = ("rotary_pct", 0.25)
    eps_key, theta_key = "layer_norm_eps", "rotary_emb_base"
    gguf_eps = "attention.layer_norm_epsilon"
    usual_eps = 1e-5
    fixed: ClassVar = {"hidden_act": "gelu", "use_parallel_residual": True, "attention_bias": True}

    def problem(self, shape: Shape) -> str | None:
        if shape.kv_heads != shape.heads:
            return f"gpt_neox needs kv_heads == heads, got {shape.kv_heads} and {shape.heads}"
        return super().problem(shape)

    def final_norm(self, shape: Shape) -> Tensors:
        return norm("final_layer_norm", shape.width, bias=True)

    def block(self, shape: Shape) -> Tensors:
        width, inner = shape.width, shape.ffn_width
        return {
            **norm("input_layernorm", width, bias=True),
            **norm("post_attention_layernorm", width, bias=True),
            **linear("attention.query_key_value", 3 * width, width, bias=True),
            **linear("attention.dense", width, width, bias=True),
            **linear("mlp.dense_h_to_4h", inner, width, bias=True),
            **linear("mlp.dense_4h_to_h", width, inner, bias=True),
        }

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        return 10 * shape.width + 2 * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        return 4 * width

    def gguf_keys(self, shape: Shape) -> Keys:
        return super().gguf_keys(shape) | {"use_parallel_residual": True}


FAMILY = GptNeoX()

"""GPT as nanoGPT trains it; the modules are in `model_zoo.models.gpt`."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Shape
from model_zoo.specs.family import Family, Keys, Size, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.settings import Config, count, number, only

_GELUS = {"gelu": "exact", "gelu_new": "new", "gelu_pytorch_tanh": "tanh"}


class Gpt(Family):
    """Pre-LayerNorm blocks, learned positions, GELU, optional biases."""

    name = model = "gpt"
    model_type, class_name, gguf = "gpt2", "GPT2LMHeadModel", "gpt2"
    sizes: ClassVar = {
        "gpt2-124m": Size(
            *(12, 768, 12, 12, 3072, 50_257, 10_000.0),
            lr=6e-4,
            context=1024,
            sequences=4,
            microbatches=32,
            switches={"bias": True, "gelu": "new"},
        )
    }
    switches = frozenset({"bias", "norm_eps", "gelu", "tied", "lora"})
    decoder, layers, tokens = "transformer", "h", "wte.weight"
    usual_targets = ("attn.c_attn",)
    residual_outputs = ("c_proj.weight",)
    learned_positions = tied_by_default = True
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

    def problem(self, shape: Shape) -> str | None:
        if shape.kv_heads != shape.heads:
            return f"gpt needs kv_heads == heads, got {shape.kv_heads} and {shape.heads}"
        return None

    def embedding(self, shape: Shape) -> Tensors:
        return super().embedding(shape) | {"wpe.weight": (shape.context, shape.width)}

    def block(self, shape: Shape) -> Tensors:
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
        return norm("ln_f", shape.width, bias=shape.bias)

    def fused(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        return {"attn.c_attn.weight": (shape.width,) * 3}

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        spelt_out = 4 if shape.gelu == "new" and precision == "fp32" else 0
        return 9 * shape.width + (2 + spelt_out) * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        return 4 * width

    def read(self, config: Config, context: int | None) -> Shape:
        refused = ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
        only(config, {"scale_attn_weights": True, **dict.fromkeys(refused, False)})
        only(config, {"add_cross_attention": False})
        activation = config.get("activation_function", "gelu_new")
        if activation not in _GELUS:
            raise ValueError(f"config.json: activation_function {activation!r} is not supported")
        heads, width = count(config, "n_head"), count(config, "n_embd")
        positions = count(config, "n_positions", 1024)
        if context not in (None, positions):
            raise ValueError(f"its positions are learned: its context is {positions} and no other")
        return Shape(
            self.name,
            count(config, "n_layer"),
            width,
            heads,
            heads,
            count(config, "n_inner", 4 * width),
            positions,
            count(config, "vocab_size"),
            bias=True,
            norm_eps=number(config, "layer_norm_epsilon", 1e-5),
            gelu=_GELUS[activation],  # type: ignore[arg-type]
        )

    def write(self, shape: Shape) -> dict[str, Any]:
        return {
            "n_positions": shape.context,
            "n_embd": shape.width,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": shape.ffn_width,
            "activation_function": {name: gelu for gelu, name in _GELUS.items()}[shape.gelu],
            "layer_norm_epsilon": shape.norm_eps,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        }

    def gguf_keys(self, shape: Shape) -> Keys:
        return {"attention.layer_norm_epsilon": shape.norm_eps}


FAMILY = Gpt()

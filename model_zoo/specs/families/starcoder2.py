"""StarCoder2: the attention of a Llama between LayerNorms, and a feed-forward part with a GELU."""

from typing import ClassVar

from model_zoo.specs.architecture import Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Size, Tensors, linear, norm
from model_zoo.specs.precision import DEFAULT, Precision


class StarCoder2(LlamaLike):
    """See the module's docstring."""

    name = model = model_type = gguf = "starcoder2"
    class_name = "Starcoder2ForCausalLM"
    switches = COMMON | {"window"}
    sizes: ClassVar = {
        "starcoder2-3b": Size(*(30, 3072, 24, 2, 12_288, 49_152, 999_999.4420358813), lr=3e-4),
    }
    residual_outputs = ("o_proj.weight", "c_proj.weight")
    tied_by_default = True
    biases = "all"
    eps_key = "norm_epsilon"
    gguf_eps = "attention.layer_norm_epsilon"
    usual_eps = 1e-5
    fixed: ClassVar = {"hidden_act": "gelu_pytorch_tanh", "use_bias": True}

    def norm(self, name: str, width: int) -> Tensors:
        return norm(name, width, bias=True)

    def feed_forward(self, shape: Shape) -> Tensors:
        inner = linear("mlp.c_fc", shape.ffn_width, shape.width, bias=True)
        return inner | linear("mlp.c_proj", shape.width, shape.ffn_width, bias=True)

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        wider = max(0, shape.joined_width - shape.width)
        return 11 * shape.width + 5 * wider + 2 * shape.ffn_width

    def usual_ffn_width(self, width: int) -> int:
        return 4 * width


FAMILY = StarCoder2()

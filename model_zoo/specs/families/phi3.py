"""Phi-3, 3.5 and 4: a Llama whose projections are fused, and of whose heads a part may be rotated.

Its longer contexts (`longrope`) have angles that depend on a text's length, and are refused.
"""

from typing import ClassVar

from model_zoo.specs.architecture import Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Size, Tensors, linear


class Phi3(LlamaLike):
    """See the module's docstring."""

    name = model = model_type = gguf = "phi3"
    class_name = "Phi3ForCausalLM"
    switches = COMMON | {"window"}
    sizes: ClassVar = {
        "phi-3-mini": Size(
            *(32, 3072, 32, 32, 8192, 32_064, 1e4),
            lr=3e-4,
            tied=False,
            switches={"window": 2047},
        ),
        "phi-4": Size(
            *(40, 5120, 40, 10, 17_920, 100_352, 2.5e5),
            lr=2e-4,
            tied=False,
        ),
    }
    usual_targets = ("self_attn.qkv_proj",)
    usual_eps = 1e-5
    partial = ("partial_rotary_factor", 1.0)
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False}

    def attention(self, shape: Shape) -> Tensors:
        rows = sum(self._rows(shape))
        output = linear("self_attn.o_proj", shape.width, shape.joined_width)
        return linear("self_attn.qkv_proj", rows, shape.width) | output

    def feed_forward(self, shape: Shape) -> Tensors:
        sides = linear("mlp.gate_up_proj", 2 * shape.ffn_width, shape.width)
        return sides | linear("mlp.down_proj", shape.width, shape.ffn_width)

    def fused(self, shape: Shape) -> dict[str, tuple[int, ...]]:
        return {
            "self_attn.qkv_proj.weight": self._rows(shape),
            "mlp.gate_up_proj.weight": (shape.ffn_width,) * 2,
        }

    @staticmethod
    def _rows(shape: Shape) -> tuple[int, int, int]:
        key = shape.kv_heads * shape.head_width
        return shape.joined_width, key, key


FAMILY = Phi3()

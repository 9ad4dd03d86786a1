"""Qwen2 and 2.5: a Llama in which queries, keys and values have biases."""

from typing import ClassVar

from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Size


class Qwen2(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "qwen2"
    class_name = "Qwen2ForCausalLM"
    switches = COMMON
    sizes: ClassVar = {
        "qwen2.5-0.5b": Size(
            *(24, 896, 14, 2, 4864, 151_936, 1e6), lr=6e-4, switches={"norm_eps": 1e-6}
        ),
    }
    biases = "qkv"
    fixed: ClassVar = {"hidden_act": "silu", "use_sliding_window": False}


FAMILY = Qwen2()

"""Qwen3: a Llama in which each head's queries and keys are normalised."""

from typing import ClassVar

from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Size

_HEADS = {"norm_eps": 1e-6, "head_dim": 128}


class Qwen3(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "qwen3"
    class_name = "Qwen3ForCausalLM"
    switches = COMMON | {"head_dim"}
    sizes: ClassVar = {
        "qwen3-0.6b": Size(*(28, 1024, 16, 8, 3072, 151_936, 1e6), lr=6e-4, switches=_HEADS),
        "qwen3-1.7b": Size(
            *(28, 2048, 16, 8, 6144, 151_936, 1e6), lr=4e-4, switches={"norm_eps": 1e-6}
        ),
        "qwen3-4b": Size(*(36, 2560, 32, 8, 9728, 151_936, 1e6), lr=3e-4, switches=_HEADS),
        "qwen3-8b": Size(
            *(36, 4096, 32, 8, 12_288, 151_936, 1e6),
            lr=3e-4,
            tied=False,
            switches={"norm_eps": 1e-6},
        ),
    }
    qk_norm = "head"
    usual_head_dim = 128
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}


FAMILY = Qwen3()

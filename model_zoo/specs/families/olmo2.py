"""OLMo-2: a Llama with norms after attention and feed-forward, and of queries and keys."""

from typing import ClassVar

from model_zoo.specs.families.llama import AFTER, COMMON, LlamaLike
from model_zoo.specs.family import Size


class Olmo2(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "olmo2"
    class_name = "Olmo2ForCausalLM"
    switches = COMMON
    sizes: ClassVar = {
        "olmo-2-1b": Size(
            *(16, 2048, 16, 16, 8192, 100_352, 5e5),
            lr=4e-4,
            tied=False,
            switches={"norm_eps": 1e-6},
        ),
        "olmo-2-7b": Size(
            *(32, 4096, 32, 32, 11_008, 100_352, 5e5),
            lr=3e-4,
            tied=False,
            switches={"norm_eps": 1e-6},
        ),
    }
    qk_norm = "projection"
    norms = AFTER
    usual_eps = 1e-5
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False}


FAMILY = Olmo2()

"""OLMoE: a mixture of experts in which projections of queries and keys are normalised."""

from typing import ClassVar

from model_zoo.specs.architecture import Experts, Shape
from model_zoo.specs.families.llama import COMMON
from model_zoo.specs.families.mixtral import Mixtral
from model_zoo.specs.family import Size


class Olmoe(Mixtral):
    """See the module's docstring."""

    name = model_type = gguf = "olmoe"
    class_name = "OlmoeForCausalLM"
    switches = COMMON | {"experts"}
    sizes: ClassVar = {
        "olmoe-1b-7b": Size(
            *(16, 2048, 16, 16, 1024, 50_304, 1e4),
            lr=4e-4,
            tied=False,
            switches={"experts": Experts(64, 8, "all", 0.01)},
        ),
    }
    rotates_neighbours = False
    qk_norm = "projection"
    expert_names = ("mlp", "gate_proj", "up_proj", "down_proj")
    usual_theta = 10_000.0
    count_key = "num_experts"
    usual_experts = (64, 8, 0.01)
    free_shares = True
    fixed: ClassVar = {"hidden_act": "silu", "attention_bias": False, "clip_qkv": None}

    def gguf_problem(self, shape: Shape) -> str | None:
        if shape.experts is not None and shape.experts.shares == "chosen":
            return "knows only shares of all experts, and this model has shares of the chosen ones"
        if shape.kv_heads != shape.heads:
            return "has as many key heads as query heads, and this model has fewer"
        return super().gguf_problem(shape)


FAMILY = Olmoe()

"""Qwen3-MoE: a Qwen3 whose feed-forward parts are mixtures of experts."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Shape
from model_zoo.specs.families.mixtral import Mixtral


class Qwen3Moe(Mixtral):
    """See the module's docstring."""

    name = model_type = "qwen3_moe"
    class_name, gguf = "Qwen3MoeForCausalLM", "qwen3moe"
    rotates_neighbours = False
    qk_norm = "head"
    expert_names = ("mlp", "gate_proj", "up_proj", "down_proj")
    usual_eps, usual_theta = 1e-6, 10_000.0
    ffn_key = "moe_intermediate_size"
    usual_experts = (128, 8, 0.001)
    free_shares = True
    # it names a sliding_window that it does not use
    fixed: ClassVar = {
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        """See `LlamaLike`. Older releases know the count by another name only."""
        found = super().write_switches(shape)
        return found | {"num_experts": found[self.count_key]}

    def gguf_problem(self, shape: Shape) -> str | None:
        if shape.experts is not None and shape.experts.shares == "all":
            return "knows only shares of the chosen experts, and this model has shares of all"
        return super().gguf_problem(shape)


FAMILY = Qwen3Moe()

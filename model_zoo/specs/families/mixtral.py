"""Mixtral: a Llama whose feed-forward parts are mixtures of experts."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Experts, Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.settings import Config, count, number


class Mixtral(LlamaLike):
    """See the module's docstring; the experts of its relatives are otherwise in files."""

    name = model_type = "mixtral"
    class_name, gguf = "MixtralForCausalLM", "llama"
    rotates_neighbours = True
    switches = COMMON | {"head_dim", "experts"}
    expert_names = ("block_sparse_moe", "w1", "w3", "w2")
    usual_eps = 1e-5
    usual_theta = 1_000_000.0
    fixed: ClassVar[dict[str, Any]] = {
        "hidden_act": "silu",
        "router_jitter_noise": 0.0,
        "sliding_window": None,
    }
    count_key: ClassVar[str] = "num_local_experts"
    usual_experts: ClassVar[tuple[int, int, float]] = (8, 2, 0.001)
    """Experts of a layer, of a token, and the weight of their loss, in a file that says nothing."""
    free_shares: ClassVar[bool] = False
    """Whether a file says which shares an expert's weight is; if not, of the chosen ones."""

    def read_switches(self, config: Config) -> dict[str, Any]:
        usual, active, balance = self.usual_experts
        all_shares = self.free_shares and not config.get("norm_topk_prob")
        experts = Experts(
            count(config, "num_local_experts", count(config, "num_experts", usual)),
            count(config, "num_experts_per_tok", active),
            "all" if all_shares else "chosen",
            number(config, "router_aux_loss_coef", balance),
        )
        return {"experts": experts}

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        experts = shape.experts
        assert experts is not None  # as in every such model
        found = {
            self.count_key: experts.count,
            "num_experts_per_tok": experts.active,
            "router_aux_loss_coef": experts.balance,
        }
        return found | ({"norm_topk_prob": experts.shares == "chosen"} if self.free_shares else {})

    def problem(self, shape: Shape) -> str | None:
        if problem := super().problem(shape):
            return problem
        if not self.free_shares and shape.experts is not None and shape.experts.shares == "all":
            return f"{self.name} has only shares of the chosen experts"
        return None


FAMILY = Mixtral()

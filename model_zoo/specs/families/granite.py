"""Granite: a Llama that multiplies what it looks up, its scores, what it adds, and its logits."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Scales, Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Keys, Size
from model_zoo.specs.settings import Config, number

_SETTINGS = {
    "embedding": "embedding_multiplier",
    "attention": "attention_multiplier",
    "residual": "residual_multiplier",
    "logits": "logits_scaling",
}


class Granite(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "granite"
    class_name = "GraniteForCausalLM"
    switches = COMMON | {"head_dim", "scales"}
    sizes: ClassVar = {
        "granite-3.3-2b": Size(
            *(40, 2048, 32, 8, 8192, 49_152, 1e7),
            lr=3e-4,
            switches={"scales": Scales(12.0, 0.015625, 0.22, 8.0)},
        ),
    }
    rotates_neighbours = True

    def problem(self, shape: Shape) -> str | None:
        if (shape.scales.attention_cap or shape.scales.logits_cap) is not None:
            return "granite has no caps"
        return super().problem(shape)

    def read_switches(self, config: Config) -> dict[str, Any]:
        return {
            "scales": Scales(**{name: number(config, _SETTINGS[name], 1.0) for name in _SETTINGS})
        }

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        return {_SETTINGS[name]: factor for name, factor in self._factors(shape).items()}

    def gguf_keys(self, shape: Shape) -> Keys:
        factors = self._factors(shape)
        return super().gguf_keys(shape) | {
            "embedding_scale": factors["embedding"],
            "attention.scale": factors["attention"],
            "residual_scale": factors["residual"],
            "logit_scale": factors["logits"],
        }

    @staticmethod
    def _factors(shape: Shape) -> dict[str, float]:
        factors = {name: getattr(shape.scales, name) for name in _SETTINGS}
        return factors | {"attention": shape.score_scale}


FAMILY = Granite()

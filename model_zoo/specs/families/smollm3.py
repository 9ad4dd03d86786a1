"""SmolLM3: a Llama in which every so many-th layer has no positions."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Shape
from model_zoo.specs.families.llama import COMMON, LlamaLike
from model_zoo.specs.family import Size
from model_zoo.specs.settings import Config, count, every

_EVERY = 4
"""What a file means that does not say, and what llama.cpp has."""


class SmolLm3(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "smollm3"
    class_name = "SmolLM3ForCausalLM"
    rotates_neighbours = True
    switches = COMMON | {"nope_every"}
    sizes: ClassVar = {
        "smollm3-3b": Size(
            *(36, 2048, 16, 4, 11_008, 128_256, 5e6),
            lr=3e-4,
            switches={"norm_eps": 1e-6, "nope_every": _EVERY},
        ),
    }
    tied_by_default = True
    usual_theta = 2_000_000.0
    fixed: ClassVar = LlamaLike.fixed | {"use_sliding_window": False}

    def read_switches(self, config: Config) -> dict[str, Any]:
        rotates = config.get("no_rope_layers")
        if rotates is None:
            return {"nope_every": count(config, "no_rope_layer_interval", _EVERY)}
        layers = count(config, "num_hidden_layers")
        if not isinstance(rotates, list) or len(rotates) < layers:
            raise ValueError("config.json: no_rope_layers should have a number for every layer")
        return {"nope_every": every([not each for each in rotates[:layers]], "no_rope_layers")}

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        rotates = [int(shape.has_positions(layer)) for layer in range(shape.layers)]
        return {"no_rope_layers": rotates}

    def gguf_problem(self, shape: Shape) -> str | None:
        if shape.nope_every != _EVERY:
            return f"leaves positions out of every {_EVERY}th layer, and this model of other ones"
        return super().gguf_problem(shape)


FAMILY = SmolLm3()

"""Gemma 3 (text): a Gemma 2 without bounds, with normalised queries and keys, and other angles in
windows."""

from typing import Any, ClassVar

from model_zoo.specs.architecture import Scales, Shape
from model_zoo.specs.families.gemma2 import Gemma2
from model_zoo.specs.family import Size
from model_zoo.specs.settings import Config, count, number, rope_settings

_LOCAL_THETA = 10_000.0
_EVERY = 6


_SMALL: dict[str, Any] = {
    "norm_eps": 1e-6,
    "head_dim": 256,
    "window": 512,
    "full_every": _EVERY,
    "local_theta": _LOCAL_THETA,
    "scales": Scales(attention=256**-0.5),
}
"""Switches of the small ones."""


class Gemma3(Gemma2):
    """See the module's docstring."""

    name = gguf = "gemma3"
    model_type, class_name = "gemma3_text", "Gemma3ForCausalLM"
    switches = Gemma2.switches | {"local_theta"}
    sizes: ClassVar = {
        "gemma-3-270m": Size(*(18, 640, 4, 1, 2048, 262_144, 1e6), lr=1e-3, switches=_SMALL),
        "gemma-3-1b": Size(*(26, 1152, 4, 1, 6912, 262_144, 1e6), lr=4e-4, switches=_SMALL),
    }
    always_tied = always_capped = False
    layers_of_largest = 62
    qk_norm = "head"
    usual_theta = 1_000_000.0
    usual_every = _EVERY
    usual_caps = (None, None)

    def read(self, config: Config, context: int | None) -> Shape:
        """See `Family`. Newer files have the angles of both kinds of layers."""
        rope = rope_settings(config)
        local = rope.get("sliding_attention") or {}
        if "full_attention" in rope:
            config = {**config, "rope_parameters": rope["full_attention"]}
        if not isinstance(local, dict):
            raise ValueError("config.json: the parameters of rope should be an object")
        if local.get("rope_type", "default") != "default":
            raise ValueError("config.json: scaled angles in windows are not supported")
        theta = number(local, "rope_theta", number(config, "rope_local_base_freq", _LOCAL_THETA))
        return super().read({**config, "rope_local_base_freq": theta}, context)

    def read_every(self, config: Config) -> int:
        return count(config, "sliding_window_pattern", self.usual_every)

    def read_switches(self, config: Config) -> dict[str, Any]:
        return super().read_switches(config) | {"local_theta": config["rope_local_base_freq"]}

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        theta = _LOCAL_THETA if shape.local_theta is None else shape.local_theta
        return super().write_switches(shape) | {"rope_local_base_freq": theta}

    def problem(self, shape: Shape) -> str | None:
        if (shape.scales.attention_cap or shape.scales.logits_cap) is not None:
            return "gemma3 has no caps"
        return super().problem(shape)

    def gguf_problem(self, shape: Shape) -> str | None:
        if shape.local_theta != _LOCAL_THETA:
            return f"has angles of {_LOCAL_THETA:,.0f} in windows, and this model other ones"
        return super().gguf_problem(shape)


FAMILY = Gemma3()

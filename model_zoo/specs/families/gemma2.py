"""Gemma 2: norms before and after, a gated GELU, every other layer in a window, bounded scores.

Gemma 3 inherits from it.
"""

import math
from typing import Any, ClassVar

from model_zoo.specs.architecture import Scales, Shape
from model_zoo.specs.families.llama import BOTH, COMMON, LlamaLike
from model_zoo.specs.family import Keys, Size
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.settings import Config, count, every, number, optional

_KINDS = {True: "full_attention", False: "sliding_attention"}


class Gemma2(LlamaLike):
    """See the module's docstring."""

    name = model_type = gguf = "gemma2"
    class_name, model = "Gemma2ForCausalLM", "gemma"
    switches = COMMON | {"head_dim", "window", "full_every", "scales"}
    sizes: ClassVar = {
        "gemma-2-2b": Size(
            *(26, 2304, 8, 4, 9216, 256_000, 1e4),
            lr=3e-4,
            switches={
                "norm_eps": 1e-6,
                "head_dim": 256,
                "window": 4096,
                "full_every": 2,
                "scales": Scales(attention=256**-0.5, attention_cap=50.0, logits_cap=30.0),
            },
        ),
    }
    first_gain = 0.0
    norms = BOTH
    tied_by_default = True
    knows_windows = always_tied = True
    usual_head_dim = 256
    usual_window = 4096
    fixed: ClassVar[dict[str, Any]] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "use_bidirectional_attention": False,
    }
    usual_every: ClassVar[int] = 2
    """Every so many-th layer has no window in a file that does not say."""
    usual_caps: ClassVar[tuple[float | None, float | None]] = (50.0, 30.0)
    """Of scores and of logits in such a file."""

    always_capped: ClassVar[bool] = True
    """Whether llama.cpp has bounds where a file names none."""
    layers_of_largest: ClassVar[int] = 46
    """By so many layers it tells the 27B model, whose scores have another scale."""

    def problem(self, shape: Shape) -> str | None:
        scales = shape.scales
        if (scales.embedding, scales.residual, scales.logits) != (1.0, 1.0, 1.0):
            return f"{self.name} has scales of scores and caps only"
        return super().problem(shape)

    def embedding_scale(self, shape: Shape) -> float:
        return math.sqrt(shape.width)

    def saved_per_token(self, shape: Shape, precision: Precision = DEFAULT) -> int:
        """See `Family`. Bounded scores are worked out one by one, and kept."""
        capped = shape.scales.attention_cap is not None
        scores = 3 * shape.heads * shape.context if capped else 0
        return super().saved_per_token(shape, precision) + 7 * shape.width + scores

    def read_switches(self, config: Config) -> dict[str, Any]:
        layers = count(config, "num_hidden_layers")
        full_every: int | None = self.read_every(config)
        if (kinds := config.get("layer_types")) is not None:
            if not isinstance(kinds, list) or len(kinds) != layers:
                raise ValueError("config.json: layer_types should have a word for every layer")
            full_every = every([kind == _KINDS[True] for kind in kinds], "full layer_types")
        attention, logits = self.usual_caps
        scalar = number(config, "query_pre_attn_scalar", 256.0)
        if scalar <= 0:
            raise ValueError(f"config.json: query_pre_attn_scalar {scalar!r} is out of range")
        return {
            # also where all texts are shorter: layers with one may have other angles
            "window": count(config, "sliding_window", self.usual_window),
            "full_every": full_every,
            "scales": Scales(
                attention=scalar**-0.5,
                attention_cap=optional(config, "attn_logit_softcapping", attention),
                logits_cap=optional(config, "final_logit_softcapping", logits),
            ),
        }

    def read_every(self, config: Config) -> int:
        """Return which layers have no window where a file does not have the kind of each."""
        return self.usual_every

    def write_switches(self, shape: Shape) -> dict[str, Any]:
        scales, scalar = shape.scales, shape.score_scale**-2
        near = round(scalar)  # of which it is the inverse root
        kinds = [_KINDS[shape.window_of(layer) is None] for layer in range(shape.layers)]
        return {
            "layer_types": kinds,
            "query_pre_attn_scalar": near if abs(scalar - near) < 1e-6 else scalar,
            "attn_logit_softcapping": scales.attention_cap,
            "final_logit_softcapping": scales.logits_cap,
        }

    def gguf_problem(self, shape: Shape) -> str | None:
        scales = shape.scales
        if self.always_capped and None in (scales.attention_cap, scales.logits_cap):
            return "bounds scores and logits, and this model does not"
        largest = shape.layers == self.layers_of_largest
        usual = (shape.width / shape.heads if largest else shape.head_width) ** -0.5
        if shape.full_every != self.usual_every or shape.window is None:
            return f"has no window in every {self.usual_every}th layer, and this model in others"
        if abs(shape.score_scale / usual - 1) > 1e-6:
            return "has the usual scale of scores, and this model another"
        if self.always_tied and not shape.tied:
            return "projects with the embedding, and this model with a matrix of its own"
        return super().gguf_problem(shape)

    def gguf_keys(self, shape: Shape) -> Keys:
        found = super().gguf_keys(shape)
        found["attention.sliding_window"] = shape.window or shape.longest
        scales = shape.scales
        if scales.attention_cap is not None:
            found["attn_logit_softcapping"] = scales.attention_cap
        if scales.logits_cap is not None:
            found["final_logit_softcapping"] = scales.logits_cap
        return found


FAMILY = Gemma2()

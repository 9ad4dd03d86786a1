"""A model that no class of transformers computes, so that transformers draws its tokens.

Every token runs the whole text once more: there is no cache. Imports transformers.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from model_zoo.stages import Stage


class OwnModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A whole model of the zoo; ``end`` is the token that ends a text, or None."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, model: Stage, end: int | None) -> None:
        super().__init__(
            PretrainedConfig(
                vocab_size=model.spec.vocab,
                num_hidden_layers=model.spec.layers,
                max_position_embeddings=model.spec.context,
                eos_token_id=end,
            )
        )
        self.model = model
        self.generation_config = GenerationConfig(use_cache=False, eos_token_id=end)

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Tokens (B, T) to logits."""
        return CausalLMOutput(logits=self.model(input_ids))

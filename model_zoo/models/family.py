"""The interface of a model family; its description says which file has it."""

from abc import ABC, abstractmethod
from importlib import import_module

from torch import Tensor, nn

from model_zoo.models.documents import Documents
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice

State = dict[str, Tensor]
"""Parameters by their names in the whole model."""


class Decoder(nn.Module, ABC):
    """All of a stage but its output projection, under the names of `transformers`.

    Made of a spec and a `StageSlice`: the embedding, the layers and the final norm that it has.
    """

    @property
    @abstractmethod
    def blocks(self) -> nn.ModuleDict:
        """The layers, by their numbers in the whole model; each takes hidden (B, T, C) to hidden.

        They take the `documents` of a batch as well, or None; so does `embed`.
        """

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """Of the last stage: hidden (B, T, C) to hidden."""

    @abstractmethod
    def embed(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        """Of the first stage: tokens (B, T) int64 to hidden (B, T, C)."""


def decoder(spec: ModelSpec, part: StageSlice) -> Decoder:
    """Return the decoder of a stage. Only what a registered family names is imported."""
    made: Decoder = import_module(f"model_zoo.models.{spec.facts.model}").DECODER(spec, part)
    return made

"""The interface of a model family; its description says which file has it."""

from abc import ABC, abstractmethod
from importlib import import_module

from torch import Tensor, nn

from model_zoo.init import empty_embedding
from model_zoo.models.documents import Documents
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice

State = dict[str, Tensor]
"""Parameters by their names in the whole model."""


class Decoder(nn.Module):
    """All of a stage but its output projection, under the names of `transformers`: the embedding,
    the layers, each a ``block``, and the final norm that a `StageSlice` has. Modules have the names
    that the family's description gives them."""

    def __init__(self, block: type["Block"], spec: ModelSpec, part: StageSlice) -> None:
        super().__init__()
        facts = spec.facts
        self._tokens, self._layers = _module(facts.tokens), facts.layers
        self._norm = _module(next(iter(facts.final_norm(spec))))
        if part.embeds:
            for name, (rows, width) in facts.embedding(spec).items():
                self.add_module(_module(name), empty_embedding(rows, width))
        layers = {str(layer): block(spec, layer) for layer in part.layers}
        self.add_module(self._layers, nn.ModuleDict(layers))
        if part.has_head:
            self.add_module(self._norm, block.norm(spec))

    @property
    def blocks(self) -> nn.ModuleDict:
        """The layers, by their numbers in the whole model; each takes hidden (B, T, C) to hidden.

        They take the `documents` of a batch as well, or None; so does `embed`.
        """
        found = self.get_submodule(self._layers)
        assert isinstance(found, nn.ModuleDict)
        return found

    @property
    def final_norm(self) -> nn.Module:
        """Of the last stage: hidden (B, T, C) to hidden."""
        return self.get_submodule(self._norm)

    def embed(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        """Of the first stage: tokens (B, T) int64 to hidden (B, T, C)."""
        hidden: Tensor = self.get_submodule(self._tokens)(tokens)
        return hidden


class Block(nn.Module, ABC):
    """One layer of a model."""

    @abstractmethod
    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()

    @staticmethod
    @abstractmethod
    def norm(spec: ModelSpec) -> nn.Module:
        """Return a norm of hidden states."""


def _module(parameter: str) -> str:
    return parameter.removesuffix(".weight")


def decoder(spec: ModelSpec, part: StageSlice) -> Decoder:
    """Return the decoder of a stage. Only what a registered family names is imported."""
    made: Decoder = import_module(f"model_zoo.models.{spec.facts.model}").DECODER(spec, part)
    return made

"""The interface of a model family; each is in the file named after its architecture."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor, nn

from model_zoo.specs.model import ARCHITECTURES, ModelSpec

State = dict[str, Tensor]
"""Parameters by their names in the whole model."""


@dataclass(frozen=True, slots=True)
class Family:
    """The three parts that any stage of a model is made of.

    Fields:
        embedding: makes of a spec what takes tokens (B, T) int64 to hidden (B, T, C).
        block: one layer, by its number in the whole model, hidden to hidden. Both take the
            `documents` of a batch as well, or None.
        head: hidden to logits (B, T, V).
    """

    embedding: Callable[[ModelSpec], nn.Module]
    block: Callable[[ModelSpec, int], nn.Module]
    head: Callable[[ModelSpec], nn.Module]


def family(spec: ModelSpec) -> Family:
    """Return the family of a model. Only what is registered is imported."""
    assert spec.architecture in ARCHITECTURES  # as every spec
    found: Family = import_module(f"model_zoo.models.{spec.architecture}").FAMILY
    return found

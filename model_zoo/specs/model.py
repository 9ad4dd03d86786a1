"""The model of a run: its shape, checked, and the parameters that follow from it.

A spec may come from a stranger's manifest, so it is bounded here, before anything is allocated
from it.
"""

import math
from functools import lru_cache

from model_zoo.specs.architecture import Architecture, Shape, Tensors, prefixed
from model_zoo.specs.architectures.gpt import Gpt
from model_zoo.specs.architectures.llama import Llama

ARCHITECTURES: dict[str, Architecture] = {"gpt": Gpt(), "llama": Llama()}
"""Every architecture that a manifest may name. A new one is a line here and two files of its name:
its facts in `specs/architectures`, its modules in `models`."""


class ModelSpec(Shape, frozen=True):
    """A shape that the zoo can build; see `Shape` for the fields.

    Raises:
        ValueError: a field is out of range or the fields contradict each other.
    """

    def __post_init__(self) -> None:
        super(ModelSpec, self).__post_init__()  # noqa: UP008  (msgspec makes the class anew)
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            name = self.architecture[:40]
            raise ValueError(f"architecture {name!r} is unknown; known are {known}")
        if problem := self.facts.problem(self):
            raise ValueError(problem)

    @property
    def facts(self) -> Architecture:
        """The description of its architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def embedding_tensors(self) -> Tensors:
        """Parameters of the embedding, by their names in the whole model."""
        return prefixed("embed.", self.facts.embedding(self))

    @property
    def head_tensors(self) -> Tensors:
        """Parameters of the final norm and the output projection."""
        return prefixed("head.", self.facts.head(self))

    def layer_tensors(self, layer: int) -> Tensors:
        """Return the parameters of one block."""
        return prefixed(f"blocks.{layer}.", self.facts.block(self))

    @property
    def layer_matrix_size(self) -> int:
        """Weights of one block's matrices, the ones every token is multiplied with."""
        return sum(math.prod(shape) for shape in self.facts.block(self).values() if len(shape) > 1)

    @property
    def embedding_parameter_count(self) -> int:
        """Parameters of the embedding part."""
        return _count(self)[0]

    @property
    def layer_parameter_count(self) -> int:
        """Parameters of one block."""
        return _count(self)[1]

    @property
    def head_parameter_count(self) -> int:
        """Parameters of the final norm and the output projection."""
        return _count(self)[2]

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, output head untied from the embedding."""
        embedding, layer, head = _count(self)
        return embedding + self.layers * layer + head


@lru_cache(maxsize=64)
def _count(spec: ModelSpec) -> tuple[int, int, int]:
    """Return the parameters of the embedding, of one block and of the head."""
    facts = spec.facts
    parts = (facts.embedding(spec), facts.block(spec), facts.head(spec))
    embedding, layer, head = (sum(map(math.prod, part.values())) for part in parts)
    return embedding, layer, head

"""The model of a run: its shape, checked, and the parameters that follow from it.

A spec may come from a stranger's manifest, so it is bounded here, before anything is allocated
from it.
"""

import math
from functools import lru_cache

from msgspec.structs import replace

from model_zoo.specs.architecture import SWITCHES, Shape
from model_zoo.specs.families import ARCHITECTURES
from model_zoo.specs.family import OUTPUT, Family, Tensors, linear, prefixed
from model_zoo.specs.narrow import BOUNDARIES, PROJECTION, TABLE, Narrow

LOGITS_AT_ONCE = 1 << 25
"""Numbers of logits that a head makes at a time, unless there is memory for more: 128 MiB in
fp32."""
MOST_LOGITS = 1 << 29
"""More at a time makes a GPU's products no faster."""


class ModelSpec(Shape, frozen=True):
    """A shape that the zoo can build; see `Shape` for the fields that are not here.

    Fields:
        narrow: boundaries between stages at which a token is fewer numbers; None: it is the whole
            residual stream there.

    Raises:
        ValueError: a field is out of range or the fields contradict each other.
    """

    narrow: Narrow | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            name = self.architecture[:40]
            raise ValueError(f"architecture {name!r} is unknown; known are {known}")
        for name, usual in SWITCHES.items():
            if getattr(self, name) != usual and name not in self.facts.switches:
                plural = {"bias": "biases"}.get(name, name)
                raise ValueError(f"{self.architecture} has no {plural}; leave {name} out")
        if problem := self.facts.problem(self) or _wrong_adapters(self):
            raise ValueError(problem)
        if self.narrow is not None and (problem := self.narrow.problem(self)):
            raise ValueError(problem)

    @property
    def facts(self) -> Family:
        """The description of its family."""
        return ARCHITECTURES[self.architecture]

    @property
    def embedding_tensors(self) -> Tensors:
        """Parameters of the embedding, by their names in the whole model."""
        return prefixed(f"{self.facts.decoder}.", self.facts.embedding(self))

    @property
    def head_tensors(self) -> Tensors:
        """Parameters of the final norm and of an output projection of its own."""
        own = {} if self.tied else linear(OUTPUT, self.vocab, self.width)
        return prefixed(f"{self.facts.decoder}.", self.facts.final_norm(self)) | own

    @property
    def token_embedding(self) -> str:
        """Name of the token embedding's matrix in the whole model."""
        return f"{self.facts.decoder}.{self.facts.tokens}"

    @property
    def layers_prefix(self) -> str:
        """Beginning of the names of all parameters of layers; the layer's number follows."""
        return f"{self.facts.decoder}.{self.facts.layers}."

    def layer_tensors(self, layer: int) -> Tensors:
        """Return the parameters of one block."""
        return prefixed(f"{self.layers_prefix}{layer}.", self.facts.block(self))

    def boundary_tensors(self, layer: int, *, sends: bool) -> Tensors:
        """Return the parameters of one end of the narrow boundary before a layer."""
        assert self.narrow is not None
        sides = self.narrow.width, self.width
        projection = linear(PROJECTION, *(sides if sends else sides[::-1]))
        own = {f"{TABLE}.weight": (self.vocab, self.width)} | projection
        return prefixed(f"{BOUNDARIES}{layer}.{'sender' if sends else 'receiver'}.", own)

    @property
    def boundary_width(self) -> int:
        """Numbers that a token is between two stages."""
        return self.width if self.narrow is None else self.narrow.width

    @property
    def base(self) -> "ModelSpec":
        """The model without adapters: what is frozen beside them, or the model itself."""
        return self if self.lora is None else replace(self, lora=None)

    @property
    def untied(self) -> "ModelSpec":
        """The model with an output projection of its own, so that any stage can be made of it."""
        return replace(self, tied=False) if self.tied else self

    @property
    def adapter_tensors(self) -> Tensors:
        """Parameters of one block's adapters, by their names within it; empty without any."""
        found: Tensors = {}
        if self.lora is not None:
            linears = self.facts.linears(self)
            for target in self.lora.targets:
                rows, columns = linears[target]
                found[f"{target}.lora_A.weight"] = (self.lora.rank, columns)
                found[f"{target}.lora_B.weight"] = (rows, self.lora.rank)
        return found

    @property
    def layer_matrix_size(self) -> int:
        """Weights of one block's matrices that a token is multiplied with."""
        shapes = self.facts.block(self).values()
        matrices = sum(math.prod(shape) for shape in shapes if len(shape) > 1)
        return matrices - self.facts.idle_per_token(self)

    @property
    def part_counts(self) -> tuple[int, int, int]:
        """Parameters of the embedding, of one block, and of the final norm with an output
        projection of its own."""
        return _count(self)

    @property
    def boundary_parameter_count(self) -> int:
        """Parameters of one end of a narrow boundary; 0 where it is wide."""
        return 0 if self.narrow is None else self.width * (self.vocab + self.narrow.width)

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, without those of adapters."""
        embedding, layer, head = self.part_counts
        ends = 0 if self.narrow is None else 2 * len(self.narrow.layers)
        return embedding + self.layers * layer + head + ends * self.boundary_parameter_count

    @property
    def active_parameter_count(self) -> int:
        """Parameters that one token passes: all, but for the experts it is not sent to."""
        return self.parameter_count - self.layers * self.facts.idle_per_token(self)


def _wrong_adapters(spec: ModelSpec) -> str | None:
    """Say in words why a model cannot have its adapters, or None."""
    lora = spec.lora
    if lora is None:
        return None
    if spec.experts is not None:
        return "a mixture of experts cannot have adapters: leave lora out and train all of it"
    linears = spec.facts.linears(spec)
    for target in lora.targets:
        if target not in linears:
            known = ", ".join(linears)
            return f"{spec.architecture} has no linear layer {target[:40]!r}; it has {known}"
        rows, columns = linears[target]
        if lora.rank > (most := min(rows, columns)):
            return (
                f"an adapter of rank {lora.rank} is larger than {target}, which is {rows} x "
                f"{columns}: take a rank of {most} or less"
            )
    if lora.targets != tuple(target for target in linears if target in lora.targets):
        return "lora.targets are not in the architecture's order, each once"
    return None


@lru_cache(maxsize=64)
def _count(spec: ModelSpec) -> tuple[int, int, int]:
    parts = (spec.embedding_tensors, spec.facts.block(spec), spec.head_tensors)
    embedding, layer, head = (sum(map(math.prod, part.values())) for part in parts)
    return embedding, layer, head

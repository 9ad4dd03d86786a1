"""The model of a run: its shape, checked, and the parameters that follow from it.

A spec may come from a stranger's manifest, so it is bounded here, before anything is allocated
from it.
"""

import math
from functools import lru_cache

from msgspec.structs import replace

from model_zoo.specs.architecture import SWITCHES, Architecture, Shape, Tensors, prefixed
from model_zoo.specs.architectures.gpt import Gpt
from model_zoo.specs.architectures.llama import Llama

ARCHITECTURES: dict[str, Architecture] = {"gpt": Gpt(), "llama": Llama()}
"""Every architecture that a manifest may name. A new one is a line here and two files of its name:
its facts in `specs/architectures`, its modules in `models`, its names in `huggingface`."""

LOGITS_AT_ONCE = 1 << 25
"""Numbers of logits that a head makes at a time: 128 MiB in fp32."""


def tokens_at_once(vocab: int) -> int:
    """Return how many tokens a head takes at a time; ``vocab`` is V."""
    return max(1, LOGITS_AT_ONCE // vocab)


class ModelSpec(Shape, frozen=True):
    """A shape that the zoo can build; see `Shape` for the fields.

    Raises:
        ValueError: a field is out of range or the fields contradict each other.
    """

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
        """Parameters of the final norm and of an output projection of its own."""
        return prefixed("head.", self.facts.head(self))

    def layer_tensors(self, layer: int) -> Tensors:
        """Return the parameters of one block."""
        return prefixed(f"blocks.{layer}.", self.facts.block(self))

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
            parts = self.facts.linear_parts(self)
            for target in self.lora.targets:
                part, prefix = parts[target], adapter_name(parts[target].module, target)
                found[f"{prefix}.a"] = (self.lora.rank, part.columns)
                found[f"{prefix}.b"] = (part.rows, self.lora.rank)
        return found

    @property
    def layer_matrix_size(self) -> int:
        """Weights of one block's matrices that a token is multiplied with."""
        shapes = self.facts.block(self).values()
        matrices = sum(math.prod(shape) for shape in shapes if len(shape) > 1)
        return matrices - self.facts.idle_per_token(self)

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
        """Parameters of the final norm and of an output projection of its own."""
        return _count(self)[2]

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model, without those of adapters."""
        embedding, layer, head = _count(self)
        return embedding + self.layers * layer + head

    @property
    def active_parameter_count(self) -> int:
        """Parameters that one token passes: all, but for the experts it is not sent to."""
        return self.parameter_count - self.layers * self.facts.idle_per_token(self)


def adapter_name(module: str, target: str) -> str:
    """Return the name of the adapter of a linear layer ``target`` within ours, ``module``."""
    return f"{module}.lora.{target.replace('.', '_')}"


def _wrong_adapters(spec: ModelSpec) -> str | None:
    """Say in words why a model cannot have its adapters, or None."""
    lora = spec.lora
    if lora is None:
        return None
    if spec.experts is not None:
        return "a mixture of experts cannot have adapters: leave lora out and train all of it"
    parts = spec.facts.linear_parts(spec)
    for target in lora.targets:
        if target not in parts:
            known = ", ".join(parts)
            return f"{spec.architecture} has no linear layer {target[:40]!r}; it has {known}"
        most = min(parts[target].rows, parts[target].columns)
        if lora.rank > most:
            shape = f"{parts[target].rows} x {parts[target].columns}"
            return (
                f"an adapter of rank {lora.rank} is larger than {target}, which is {shape}: take "
                f"a rank of {most} or less"
            )
    if lora.targets != tuple(target for target in parts if target in lora.targets):
        return "lora.targets are not in the architecture's order, each once"
    return None


@lru_cache(maxsize=64)
def _count(spec: ModelSpec) -> tuple[int, int, int]:
    """Return the parameters of the embedding, of one block and of the head."""
    facts = spec.facts
    parts = (facts.embedding(spec), facts.block(spec), facts.head(spec))
    embedding, layer, head = (sum(map(math.prod, part.values())) for part in parts)
    return embedding, layer, head

"""The slices of a model that stages hold: their layers, ends and parameters.

`specs.partition` chooses the cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from model_zoo.specs.family import Tensors, prefixed
from model_zoo.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class StageSlice:
    """The layers [first_layer, last_layer) and the ends that stage `index` of `count` holds."""

    index: int
    count: int
    first_layer: int
    last_layer: int
    embeds: bool
    has_head: bool

    @property
    def layers(self) -> range:
        """Their numbers in the whole model."""
        return range(self.first_layer, self.last_layer)


def slices(layers_per_stage: Sequence[int]) -> tuple[StageSlice, ...]:
    """Return the slices of a cut, in order.

    Raises:
        ValueError: there is no stage, or one without a layer.
    """
    if not layers_per_stage or min(layers_per_stage) < 1:
        raise ValueError(f"every stage needs at least one layer, got {tuple(layers_per_stage)}")
    count = len(layers_per_stage)
    ends = list(accumulate(layers_per_stage))
    return tuple(
        StageSlice(index, count, end - layers, end, index == 0, index == count - 1)
        for index, (layers, end) in enumerate(zip(layers_per_stage, ends, strict=True))
    )


def whole_slice(spec: ModelSpec) -> StageSlice:
    """Return the one slice of an uncut model."""
    return StageSlice(0, 1, 0, spec.layers, embeds=True, has_head=True)


def stage_tensors(spec: ModelSpec, part: StageSlice) -> Tensors:
    """Return the parameters that a replica of this stage trains, by their names in the whole model.

    In the model's order; in the same order, a state has them as `specs.state` says. Where the model
    has adapters these are the adapters; what is frozen beside them is `stage_tensors(spec.base)`.
    """
    if spec.lora is not None:
        prefix = spec.layers_prefix
        each = (prefixed(f"{prefix}{layer}.", spec.adapter_tensors) for layer in part.layers)
        return {name: shape for tensors in each for name, shape in tensors.items()}
    found = dict(spec.embedding_tensors) if part.embeds else {}
    for layer in part.layers:
        found |= spec.layer_tensors(layer)
    if part.has_head:
        found |= spec.head_tensors
    for layer, sends in boundary_ends(spec, part):
        found |= spec.boundary_tensors(layer, sends=sends)
    return found


def boundary_ends(spec: ModelSpec, part: StageSlice) -> list[tuple[int, bool]]:
    """Return the ends of narrow boundaries that a stage has, in order: the layer behind each, and
    whether it sends. The uncut model has both ends of all."""
    found = []
    for layer in () if spec.narrow is None else spec.narrow.layers:
        if part.first_layer < layer <= part.last_layer:
            found.append((layer, True))
        if part.first_layer <= layer < part.last_layer:
            found.append((layer, False))
    return found


def cut_problem(spec: ModelSpec, layers_per_stage: Sequence[int]) -> str | None:
    """Say in words why a model cannot be cut so, or None."""
    if sum(layers_per_stage) != spec.layers:
        return f"{tuple(layers_per_stage)} do not add up to {spec.layers} layers"
    if spec.narrow is not None and spec.narrow.layers != narrow_layers(layers_per_stage):
        return "the narrow boundaries are not between the stages"
    return None


def narrow_layers(layers_per_stage: Sequence[int]) -> tuple[int, ...]:
    """Return the layers behind the boundaries of a cut."""
    return tuple(accumulate(layers_per_stage[:-1]))


def stage_parameter_count(spec: ModelSpec, part: StageSlice) -> int:
    """Return N, the number of parameters that a replica of this stage trains."""
    layers = part.last_layer - part.first_layer
    count = _parameters(spec, layers, embeds=part.embeds, has_head=part.has_head)
    return count + len(boundary_ends(spec, part)) * spec.boundary_parameter_count


def stage_parameters(spec: ModelSpec, layers_per_stage: Sequence[int], stage: int) -> int:
    """Return N, the parameters that one stage trains, in time independent of the number of stages.

    ``spec`` is the whole model, ``layers_per_stage`` the cut, ``stage`` the index.
    """
    last, layers = len(layers_per_stage) - 1, layers_per_stage[stage]
    count = _parameters(spec, layers, embeds=stage == 0, has_head=stage == last)
    return count + ((stage > 0) + (stage < last)) * spec.boundary_parameter_count


def frozen_bytes(spec: ModelSpec, part: StageSlice) -> int:
    """Return the memory of what a stage keeps beside its adapters; 0 where it has none."""
    if spec.lora is None:
        return 0
    blocks = (part.last_layer - part.first_layer) * spec.part_counts[1]
    ends = stage_parameter_count(spec.base, part) - blocks
    return round(blocks * spec.lora.base_bytes) + ends * spec.lora.ends_bytes


def _parameters(spec: ModelSpec, layers: int, *, embeds: bool, has_head: bool) -> int:
    if spec.lora is not None:
        return layers * sum(map(math.prod, spec.adapter_tensors.values()))
    embedding, layer, head = spec.part_counts
    return embedding * embeds + layers * layer + head * has_head

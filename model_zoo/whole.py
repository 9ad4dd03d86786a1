"""The uncut model, from a seed or from the merged states of its stages."""

from collections.abc import Mapping

from torch import Tensor

from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import whole_slice
from model_zoo.stages import Stage, build_stage, load_stage


def build_whole(spec: ModelSpec, seed: int) -> Stage:
    """The model at version 0: tokens (B, T) int64 to logits (B, T, V) fp32."""
    return build_stage(spec, whole_slice(spec), seed)


def load_whole(spec: ModelSpec, state: Mapping[str, Tensor]) -> Stage:
    """The model with the weights of a merged state.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    return load_stage(spec, whole_slice(spec), state)

"""A model in stages: one contiguous slice of the layers, with the embedding or head at the ends.

A parameter has the same global name in every cut (`blocks.3.attn.qkv.weight`), so the states of
all stages merge into the state of the whole model, and the whole model is itself the stage that
holds everything. Stages hold parameters; where to cut is the business of `cutting`.

Shapes: B sequences, T tokens, C width, V vocabulary.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model_zoo.init import initial_tensor
from model_zoo.models.family import State, family
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.slices import StageSlice


class Stage(nn.Module):
    """One slice of a model, or all of it.

    Forward maps tokens (B, T) int64 on the first stage, else hidden (B, T, C) fp32, to hidden
    (B, T, C), or to logits (B, T, V) on the last stage. T is at most `spec.context`. Token
    values are not checked here: whoever takes tokens from outside checks them first.
    """

    def __init__(self, spec: ModelSpec, part: StageSlice) -> None:
        super().__init__()
        parts = family(spec)
        self.spec = spec
        self.part = part
        self.embed = parts.embedding(spec) if part.embeds else None
        # Keyed by the layer's number in the whole model: this makes the names global.
        layers = range(part.first_layer, part.last_layer)
        self.blocks = nn.ModuleDict({str(layer): parts.block(spec) for layer in layers})
        self.head = parts.head(spec) if part.has_head else None

    def forward(self, x: Tensor) -> Tensor:
        """Run the stage: tokens (B, T) or hidden (B, T, C) to hidden or logits (B, T, V).

        Raises:
            ValueError: T exceeds the model's context.
        """
        if x.shape[1] > self.spec.context:
            raise ValueError(f"{x.shape[1]} tokens exceed the context of {self.spec.context}")
        if self.embed is not None:
            x = self.embed(x)  # (B, T) -> (B, T, C)
        for block in self.blocks.values():
            x = block(x)  # (B, T, C)
        return x if self.head is None else self.head(x)  # (B, T, V)


def build_stage(spec: ModelSpec, part: StageSlice, seed: int) -> Stage:
    """Return a stage with its initial weights, fp32 on the CPU; the same bits in every cut.

    ``spec`` is the whole model, ``part`` the slice, ``seed`` that of the run.
    """
    stage = _layout(spec, part)
    state = {
        name: initial_tensor(spec, seed, name, parameter.shape)
        for name, parameter in stage.named_parameters()
    }
    stage.load_state_dict(state, assign=True)
    return stage


def load_stage(spec: ModelSpec, part: StageSlice, state: Mapping[str, Tensor]) -> Stage:
    """Return a stage with a copy of the given weights; other stages' names are ignored.

    ``spec`` is the whole model, ``part`` the slice, ``state`` has parameters by name.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    stage = _layout(spec, part)
    own: State = {}
    for name, parameter in stage.named_parameters():
        found = state.get(name)
        if found is None or found.shape != parameter.shape:
            got = "nothing" if found is None else tuple(found.shape)
            raise ValueError(f"{name} should be {tuple(parameter.shape)}, the state has {got}")
        own[name] = found.detach().to(torch.float32, copy=True)
    stage.load_state_dict(own, assign=True)
    return stage


def _layout(spec: ModelSpec, part: StageSlice) -> Stage:
    if not 0 <= part.first_layer <= part.last_layer <= spec.layers:
        raise ValueError(f"{part} does not fit a model of {spec.layers} layers")
    with torch.device("meta"):  # shapes only: no weights drawn that are overwritten at once
        return Stage(spec, part)


def merge_states(states: Iterable[Mapping[str, Tensor]]) -> State:
    """The union of the stages' states, tensors shared.

    Raises:
        ValueError: two states hold the same name.
    """
    merged: State = {}
    for state in states:
        doubled = merged.keys() & state.keys()
        if doubled:
            raise ValueError(f"two stages hold {min(doubled)}")
        merged.update(state)
    return merged


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats summed over all tokens: logits (B, T, V), targets (B, T) int64.

    A sum, not a mean: gradients of microbatches add up and are divided once, by the tokens of
    the step, whoever computed them.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

"""A model in stages: one contiguous slice of the layers, with the embedding or head at the ends.

A parameter has the same global name in every cut, that of `transformers`, so the states of
all stages merge into the state of the whole model, and the whole model is itself the stage that
holds everything. Stages hold parameters; where to cut is the business of `specs.partition`.

Shapes: B sequences, T tokens, C width, V vocabulary, K numbers of a boundary: C, unless the model's
boundaries are narrow.
"""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model_zoo.data import NO_TARGET
from model_zoo.init import initial_tensor
from model_zoo.models.boundaries import boundaries
from model_zoo.models.documents import Documents, documents_of
from model_zoo.models.family import Decoder, State, decoder
from model_zoo.models.llama import bounded
from model_zoo.models.lora import freeze, kept, multiply
from model_zoo.specs.family import OUTPUT
from model_zoo.specs.model import LOGITS_AT_ONCE, ModelSpec
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.slices import StageSlice, stage_tensors, whole_slice

Runner = Callable[[nn.Module, Tensor, Documents | None], Tensor]


def run_block(block: nn.Module, x: Tensor, documents: Documents | None) -> Tensor:
    """Run one block as it is: hidden (B, T, C) to hidden."""
    result: Tensor = block(x, documents)
    return result


class Stage(nn.Module):
    """One slice of a model, or all of it; computes in fp32 unless its `precision` is set.

    Forward maps tokens (B, T) int64 on the first stage, else what came over a boundary, (B, T, K)
    fp32, to what goes over the next one, or to logits (B, T, V) on the last stage. T is at most
    `spec.context`. Token values are not checked here: whoever takes tokens from outside checks them
    first.
    """

    def __init__(self, spec: ModelSpec, part: StageSlice) -> None:
        super().__init__()
        if spec.tied and part.has_head and not part.embeds:
            raise ValueError("the output projection is the embedding's, which another stage has")
        self.spec = spec
        self.part = part
        self.precision: Precision = DEFAULT
        self.reruns_blocks = False
        """Whether a graph keeps each block's input alone, and backward runs the block once more:
        the same numbers from less memory, for a third more work."""
        self.logits_at_once = LOGITS_AT_ONCE
        """Numbers of logits that the loss has at a time (`head_loss`)."""
        self.runner: Runner = run_block
        """Runs the blocks: as they are, or compiled."""
        self.add_module(spec.facts.decoder, decoder(spec, part))
        if part.has_head and not spec.tied:
            self.add_module(OUTPUT, nn.Linear(spec.width, spec.vocab, bias=False))
        self.boundaries = boundaries(spec, part)
        if spec.lora is not None:
            freeze(self, spec, spec.lora)

    @property
    def decoder(self) -> Decoder:
        """All but the output projection."""
        found = self.get_submodule(self.spec.facts.decoder)
        assert isinstance(found, Decoder)
        return found

    @property
    def blocks(self) -> nn.ModuleDict:
        """The layers, by their numbers in the whole model."""
        return self.decoder.blocks

    @property
    def head(self) -> list[nn.Module]:
        """The final norm and an output projection of its own; empty: another stage has them."""
        if not self.part.has_head:
            return []
        own = [] if self.spec.tied else [self.get_submodule(OUTPUT)]
        return [self.decoder.final_norm, *own]

    def forward(
        self, x: Tensor, begins: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """Run the stage: tokens (B, T) or (B, T, K) to (B, T, K) or logits (B, T, V).

        ``begins`` and ``tokens`` are as in `hidden`.

        Raises:
            ValueError: T exceeds the model's context.
        """
        with self.computing(x.device):
            return self.project(self.hidden(x, begins, tokens))

    def computing(self, device: torch.device) -> torch.autocast:
        """Return the context in which passes on ``device`` compute in the stage's precision."""
        # Without its cache: a cast belongs to one pass, and is in that one's graph.
        low = self.precision == "bf16"
        return torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False)

    def hidden(
        self, x: Tensor, begins: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """Run all but the head: tokens (B, T) or (B, T, K) to (B, T, K), or to hidden (B, T, C) on
        the last stage.

        Args:
            x: what comes in.
            begins: (B, T), as `documents_of` takes it.
            tokens: (B, T) int64; needed after the first stage where boundaries are narrow.

        Raises:
            ValueError: T exceeds the model's context.
        """
        if x.shape[1] > self.spec.context:
            raise ValueError(f"{x.shape[1]} tokens exceed the context of {self.spec.context}")
        documents = documents_of(begins, x.device)
        if self.part.embeds:
            tokens, x = x, self.decoder.embed(x, documents)  # (B, T) -> (B, T, C)
        for layer, block in self.blocks.items():
            x = self._run(block, self._across(x, layer, tokens), documents)  # (B, T, C)
        return self._across(x, str(self.part.last_layer), tokens)

    def _across(self, x: Tensor, layer: str, tokens: Tensor | None) -> Tensor:
        """Pass as much of the narrow boundary before a layer as the stage has."""
        if layer not in self.boundaries:
            return x
        passed: Tensor = self.boundaries[layer](x, tokens)
        return passed

    def _run(self, block: nn.Module, x: Tensor, documents: Documents | None) -> Tensor:
        if not (self.reruns_blocks and torch.is_grad_enabled()):
            return self.runner(block, x, documents)
        # blocks draw no random numbers
        result: Tensor = checkpoint(
            self.runner, block, x, documents, use_reentrant=False, preserve_rng_state=False
        )
        return result

    def project(self, x: Tensor) -> Tensor:
        """Run the head, if the stage has it: hidden (B, T, C) to logits (B, T, V), each token by
        itself."""
        for module in self.head:
            x = module(x)
        tied = self._tied_embedding()
        if tied is not None:
            # one that is frozen beside adapters is not kept in fp32 between the passes
            x = F.linear(x, tied) if tied.requires_grad else multiply(x, tied, None)
        return self._scaled(x) if self.part.has_head else x

    def _scaled(self, logits: Tensor) -> Tensor:
        """Divide and bound logits as the model does, if it does."""
        scales = self.spec.scales
        if scales.logits != 1:
            logits = logits / scales.logits
        return logits if scales.logits_cap is None else bounded(logits, scales.logits_cap)

    @property
    def projecting(self) -> list[nn.Parameter]:
        """The parameters with which the head projects; a tied one's are the embedding's, too."""
        own = [parameter for module in self.head for parameter in module.parameters()]
        tied = self._tied_embedding()
        return own if tied is None else [*own, tied]

    def _tied_embedding(self) -> nn.Parameter | None:
        """The embedding (V, C) that is the output projection as well, if it is."""
        if not (self.spec.tied and self.part.has_head):
            return None
        return self.get_parameter(self.spec.token_embedding)


def build_stage(spec: ModelSpec, part: StageSlice, seed: int) -> Stage:
    """Return a stage with its initial weights, on the CPU; the same bits in every cut.

    ``spec`` is the whole model, ``part`` the slice, ``seed`` that of the run.
    """
    stage, shapes = _layout(spec, part), _shapes(spec, part)
    state = {
        name: kept(initial_tensor(spec, seed, name, shapes[name]), parameter, spec.lora)
        for name, parameter in stage.named_parameters()
    }
    stage.load_state_dict(state, assign=True)
    return stage


def blank_stage(spec: ModelSpec, part: StageSlice, seed: int) -> Stage:
    """Return a stage on the CPU whose imported weights are zero and still to be loaded.

    ``spec`` is the whole model, ``part`` the slice, ``seed`` that of the run, for adapters. What is
    frozen beside adapters takes no memory until it is loaded.
    """
    stage = _layout(spec, part)
    zeros = {
        name: torch.zeros(each.shape)
        if each.requires_grad
        else torch.zeros(1, dtype=each.dtype).expand(each.shape)
        for name, each in stage.named_parameters()
    }
    stage.load_state_dict(zeros | initial_adapters(spec, part, seed), assign=True)
    return stage


def initial_adapters(spec: ModelSpec, part: StageSlice, seed: int) -> State:
    """Return the adapters of a stage at version 0, by name; empty where the model has none.

    ``spec`` is the whole model, ``part`` the slice, ``seed`` that of the run.
    """
    if spec.lora is None:
        return {}
    shapes = stage_tensors(spec, part)
    return {n: initial_tensor(spec, seed, n, torch.Size(shape)) for n, shape in shapes.items()}


def _shapes(spec: ModelSpec, part: StageSlice) -> dict[str, torch.Size]:
    """Return the shapes of all parameters of a stage, trained or frozen, before any packing."""
    tensors = stage_tensors(spec.base, part) | stage_tensors(spec, part)
    return {name: torch.Size(shape) for name, shape in tensors.items()}


def twin(stage: Stage) -> Stage:
    """Return a copy of a stage that shares what is frozen."""
    shared = {id(each): each for each in stage.parameters() if not each.requires_grad}
    return copy.deepcopy(stage, shared)


def load_stage(spec: ModelSpec, part: StageSlice, state: Mapping[str, Tensor]) -> Stage:
    """Return a stage with a copy of the given weights; other stages' names are ignored.

    ``spec`` is the whole model, ``part`` the slice, ``state`` has parameters by name.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    stage, shapes = _layout(spec, part), _shapes(spec, part)
    own: State = {}
    for name, parameter in stage.named_parameters():
        found = state.get(name)
        if found is None or found.shape != shapes[name]:
            got = "nothing" if found is None else tuple(found.shape)
            raise ValueError(f"{name} should be {tuple(shapes[name])}, the state has {got}")
        own[name] = kept(found.detach().clone(), parameter, spec.lora)
    stage.load_state_dict(own, assign=True)
    return stage


def build_whole(spec: ModelSpec, seed: int) -> Stage:
    """The model at version 0: tokens (B, T) int64 to logits (B, T, V) fp32."""
    return build_stage(spec, whole_slice(spec), seed)


def load_whole(spec: ModelSpec, state: Mapping[str, Tensor]) -> Stage:
    """The model with the weights of a merged state.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    return load_stage(spec, whole_slice(spec), state)


def _layout(spec: ModelSpec, part: StageSlice) -> Stage:
    if not 0 <= part.first_layer <= part.last_layer <= spec.layers:
        raise ValueError(f"{part} does not fit a model of {spec.layers} layers")
    with torch.device("meta"):  # shapes only: no weights drawn that are overwritten at once
        return Stage(spec, part)


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats summed over all tokens: logits (B, T, V), targets (B, T) int64.

    A sum, not a mean: gradients of microbatches add up and are divided once, by the tokens of
    the step, whoever computed them. Targets that are `NO_TARGET` are left out.
    """
    flat = targets.flatten()
    return F.cross_entropy(logits.flatten(0, 1), flat, reduction="sum", ignore_index=NO_TARGET)


def losses_of(logits: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of logits (B, T, V) for targets (B, T) int64, `NO_TARGET` where
    nothing is learned; and what is run back, where it has a ``weight``: `DataSpec.loss_weight`."""
    loss = summed_loss(logits.float(), targets)
    return loss, loss if weight == 1 else loss * weight


def shown_share(targets: Tensor) -> float:
    """Return all targets (B, T) by those that are learned: the mean of the latter, times all, is
    the loss that is shown of a microbatch."""
    learned = int((targets != NO_TARGET).sum())
    return targets.numel() / learned if learned else 0.0

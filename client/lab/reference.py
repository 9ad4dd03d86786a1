"""The single-process trainer: oracle for a swarm's exactness, baseline for its efficiency.

It trains what a swarm would train, from the same seed on the same samples, with torch's own
clipping and the optimizer's twin (`twins`), not with the swarm's: two implementations
that have to agree. Give it a `wire` and every tensor that would cross between two stages passes
through it; without one it runs the model uncut, as fast as one process can.

With local rounds a step is a round: which replica counted which microbatches, and in which order,
fixes its numbers, so `dealt` says it. All stages of a replica here see the same microbatches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from client.lab.twins import twin
from model_zoo.data import NO_TARGET, beginnings, inputs_and_targets
from model_zoo.datasets.corpus import Corpus
from model_zoo.models.family import State
from model_zoo.specs.local_rounds import OUTER, LocalRounds
from model_zoo.specs.matrices import rows_of
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec, learning_rate, stage_clip
from model_zoo.specs.precision import precision_on
from model_zoo.specs.slices import StageSlice, slices, stage_tensors, whole_slice
from model_zoo.specs.state import decays
from model_zoo.stages import (
    Stage,
    build_stage,
    initial_adapters,
    load_stage,
    losses_of,
    shown_share,
    summed_loss,
)
from model_zoo.threads import limited_threads
from protocol.manifest import Manifest
from protocol.rounds.stretch import stretch


@dataclass(frozen=True, slots=True)
class WireContext:
    """The tensor that passes a boundary: between stages `boundary` and `boundary` + 1."""

    step: int
    microbatch: int
    boundary: int
    direction: Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """Mean loss per token of every step, in nats, and the merged state after the last update.

    Where not all tokens are learned, it is the mean over microbatches of each one's mean.
    A step's loss is that of the parameters its gradient is computed at.
    """

    losses: tuple[float, ...]
    state: State


Wire = Callable[[Tensor, WireContext], Tensor]
Dealt = Callable[[int], Sequence[Sequence[int]]]
"""The microbatches that each replica counted in a step, in its order."""


def train_reference(
    run: Manifest,
    corpus: Corpus,
    *,
    wire: Wire | None = None,
    threads: int | None = None,
    on_step: Callable[[int, float], None] | None = None,
    start: Mapping[str, Tensor] | None = None,
    dealt: Dealt | None = None,
    turns: Sequence[tuple[int, OptimizerSpec]] = (),
) -> ReferenceRun:
    """Train in this process what a swarm would train on `corpus`.

    Args:
        run: what fixes the numbers, but for the corpus.
        wire: encodes and decodes a boundary tensor (B, T, C) or its gradient; None: no cut.
        threads: CPU threads of torch during the run; None leaves them as they are.
        on_step: called with every step and its loss, after its update.
        start: the whole model's parameters to begin with; None: those of the run's seed.
        dealt: for local rounds; None: one replica, in order.
        turns: the steps from which other schedules hold, in rising order.

    Raises:
        DataError: the corpus is shorter than one sample.
    """
    parts = [whole_slice(run.model)] if wire is None else slices(run.layers_per_stage)
    stages = [_stage(run, part, start) for part in parts]
    for stage in stages:
        stage.precision = precision_on(run.compute, fast_in_bf16=False)
    trainer = _Trainer(run, corpus, stages, wire)
    rounds = None if run.local_rounds is None else _Rounds(trainer, run.local_rounds)
    optimizer = trainer.twin(run.optimizer)
    losses = list[float]()
    with limited_threads(threads):
        for step in range(run.steps):
            microbatches = microbatches_of(run, step)
            turned = [schedule for from_step, schedule in turns if from_step <= step]
            rate = learning_rate([run.optimizer, *turned][-1], step)
            if rounds is None:
                loss = trainer.update(optimizer, step, microbatches, rate)
            else:
                loss = rounds.run(step, dealt(step) if dealt else [microbatches], rate)
            losses.append(loss / run.tokens_per_step)
            if on_step is not None:
                on_step(step, losses[-1])
    state = merge_states(stage.state_dict() for stage in stages)
    return ReferenceRun(tuple(losses), state)


def microbatches_of(run: Manifest, step: int) -> range:
    """Return the microbatches of a step."""
    return range(step * run.microbatches_per_step, (step + 1) * run.microbatches_per_step)


def evaluate(
    model: nn.Module, corpus: Corpus, *, batches: int, sequences: int, context: int
) -> float:
    """Return the mean held-out loss per learned token, in nats, of a whole model.

    Args:
        model: the whole model.
        corpus: source of the held-out text.
        batches: number of fixed batches.
        sequences: B.
        context: T.
    """
    total, learned = 0.0, 0
    with torch.no_grad():
        for index in range(batches):
            inputs, targets, begins = _split(corpus.held_out_batch(index, sequences, context))
            total += summed_loss(model(inputs, begins), targets).item()
            learned += int((targets != NO_TARGET).sum())
    return total / max(1, learned)


def _stage(run: Manifest, part: StageSlice, start: Mapping[str, Tensor] | None) -> Stage:
    if start is None:
        return build_stage(run.model, part, run.seed)
    return load_stage(run.model, part, initial_adapters(run.model, part, run.seed) | dict(start))


def _stage_parameters(run: Manifest, stages: Iterable[Stage]) -> list[list[nn.Parameter]]:
    """The parameters of every stage of the run's cut, wherever they lie."""
    every = (named for stage in stages for named in stage.named_parameters())
    named = {name: parameter for name, parameter in every if parameter.requires_grad}
    groups = []
    for part in slices(run.layers_per_stage):
        groups.append([named[name] for name in stage_tensors(run.model, part)])
    return groups


class _Trainer:
    """The model, and updates of it."""

    def __init__(
        self, run: Manifest, corpus: Corpus, stages: Sequence[Stage], wire: Wire | None
    ) -> None:
        self.run = run
        self._corpus, self._stages, self._wire = corpus, stages, wire
        self.groups = _stage_parameters(run, stages)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that are trained."""
        return [parameter for group in self.groups for parameter in group]

    def twin(self, spec: OptimizerSpec) -> torch.optim.Optimizer:
        """Return an optimizer's twin for all parameters."""
        return twin_of(spec, self.run.model, self._stages)

    def update(
        self,
        optimizer: torch.optim.Optimizer,
        step: int,
        microbatches: Sequence[int],
        rate: float,
    ) -> float:
        """Update by the mean gradient over some microbatches of a step; their summed loss."""
        loss = sum(self._add_gradient(step, microbatch) for microbatch in microbatches)
        tokens = len(microbatches) * self.run.tokens_per_microbatch
        make_mean(self.groups, tokens, self.run.optimizer)
        apply(optimizer, rate)
        return loss

    def _add_gradient(self, step: int, microbatch: int) -> float:
        """Add a microbatch's summed gradient; its summed loss."""
        run, corpus = self.run, self._corpus
        rows = run.sequences_per_microbatch
        samples = corpus.sample(microbatch, rows, run.model.context, run.seed)
        inputs, targets, begins = _split(samples)
        x: Tensor = inputs  # (B, T)
        for index, stage in enumerate(self._stages):
            if self._wire is not None and index:
                x = _across(x, self._wire, step, microbatch, index - 1)  # (B, T, C)
            x = stage(x, begins, inputs)
        loss, whole = losses_of(x, targets, corpus.spec.loss_weight)
        whole.backward()  # type: ignore[no-untyped-call]
        return loss.item() * shown_share(targets)


class _Rounds:
    """Local rounds: every replica steps from the version's parameters by an optimizer of its own,
    and the outer one moves the version by the mean of their differences, weighed by their work, as
    far as one of them has gone."""

    def __init__(self, trainer: _Trainer, rounds: LocalRounds) -> None:
        self._trainer, self._rounds = trainer, rounds
        self._inner: list[torch.optim.Optimizer] = []
        """Of each replica; what it keeps goes on across rounds."""
        self._outer = trainer.twin(OUTER)

    def run(self, step: int, dealt: Sequence[Sequence[int]], rate: float) -> float:
        """Make the next version; the summed loss, each microbatch's where it was run."""
        trainer, every, loss = self._trainer, self._rounds.inner_microbatches, 0.0
        while len(self._inner) < len(dealt):
            self._inner.append(trainer.twin(trainer.run.optimizer))
        base = [parameter.detach().clone() for parameter in trainer.parameters]
        differences = [torch.zeros_like(parameter) for parameter in base]
        own_squares = [0.0] * len(base)
        for inner, microbatches in zip(self._inner, dealt, strict=False):
            self._move_to(base)
            for first in range(0, len(microbatches), every):
                group = microbatches[first : first + every]
                loss += trainer.update(inner, step, group, rate * (len(group) / every))
            share = len(microbatches) / trainer.run.microbatches_per_step
            for index, parameter in enumerate(trainer.parameters):
                own = base[index] - parameter.detach()
                differences[index].add_(own, alpha=share)
                own_squares[index] += share * float(own.square().sum())
        self._move_to(base)
        for parameter, difference in zip(trainer.parameters, differences, strict=True):
            parameter.grad = difference
        self._stretch(list(map(len, dealt)), own_squares)
        apply(self._outer, OUTER.lr)
        return loss

    def _stretch(self, counts: Sequence[int], own_squares: Sequence[float]) -> None:
        """Lengthen the differences of each stage's parameters, each stage by itself."""
        own, whole = iter(own_squares), sum(counts)
        for parameters in self._trainer.groups:
            squares = sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None)
            own_square = sum(next(own) for _ in parameters)
            further = stretch(counts, squares * whole**2, own_square)
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(further)

    @torch.no_grad()
    def _move_to(self, values: Iterable[Tensor]) -> None:
        for parameter, value in zip(self._trainer.parameters, values, strict=True):
            parameter.copy_(value)


def twin_of(
    spec: OptimizerSpec, model: ModelSpec, stages: Iterable[Stage]
) -> torch.optim.Optimizer:
    """Return an optimizer's twin. Only matrices decay; where it treats those of the layers as
    matrices, parameters whose matrices have the same rows are a group."""
    groups: dict[tuple[bool, tuple[int, ...]], list[nn.Parameter]] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            by_matrix = OPTIMIZERS[spec.name].by_matrix
            rows = rows_of(model, name, tuple(parameter.shape)) if by_matrix else ()
            groups.setdefault((decays(name, parameter.shape), rows), []).append(parameter)
    settings = (
        {"params": found, "weight_decay": spec.weight_decay if decaying else 0.0, "rows": rows}
        for (decaying, rows), found in groups.items()
    )
    return twin(spec, settings)


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


def make_mean(stages: Sequence[list[nn.Parameter]], tokens: int, spec: OptimizerSpec) -> None:
    """Divide the summed gradients of each stage's parameters by so many tokens, and clip them."""
    for parameters in stages:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(tokens)
        if spec.clip > 0:
            nn.utils.clip_grad_norm_(parameters, stage_clip(spec, len(stages)))


def apply(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Take a step by the gradients that the parameters have, and clear these."""
    for settings in optimizer.param_groups:
        settings["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()


class _Boundary(torch.autograd.Function):
    """Passes a tensor through the wire on the way forward and its gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, place: WireContext) -> Tensor:
        ctx.wire, ctx.place = wire, place
        return wire(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.wire(gradient, replace(ctx.place, direction="backward")), None, None


def _across(x: Tensor, wire: Wire, step: int, microbatch: int, boundary: int) -> Tensor:
    place = WireContext(step, microbatch, boundary, "forward")
    decoded: Tensor = _Boundary.apply(x, wire, place)  # type: ignore[no-untyped-call]
    return decoded


def _split(samples: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets, and with which inputs documents begin: (B, T + 1) -> (B, T) each."""
    inputs, targets = inputs_and_targets(samples)
    begins = beginnings(samples)
    return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(begins)

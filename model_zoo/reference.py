"""The single-process trainer: oracle for a swarm's exactness, baseline for its efficiency.

It trains what a swarm would train, from the same seed on the same samples, with torch's own
clipping and the optimizer's twin (torch's own for AdamW), not with the swarm's: two implementations
that have to agree. Give it a `wire` and every tensor that would cross between two stages passes
through it; without one it runs the model uncut, as fast as one process can.

With the one-step-delayed update a step's gradient is computed before the update of the step before
it is applied: step s's at the parameters after max(s - 1, 0) updates and as far again as the last
of these changed them, though it makes s + 1 of s.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from model_zoo.data import NO_TARGET, Corpus, beginnings, inputs_and_targets
from model_zoo.models.family import State
from model_zoo.optimizers.optimizer import flat_optimizer
from model_zoo.specs.course import Course, Turn
from model_zoo.specs.matrices import rows_of
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec, stage_clip
from model_zoo.specs.precision import DEFAULT, Precision
from model_zoo.specs.slices import StageSlice, slices, stage_tensors, whole_slice
from model_zoo.stages import (
    Stage,
    build_stage,
    initial_adapters,
    load_stage,
    losses_of,
    merge_states,
    shown_share,
    summed_loss,
)
from model_zoo.threads import limited_threads


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that fixes the numbers of a training run, but for the corpus.

    Fields:
        delayed: whether updates are delayed by one step.
        precision: in which passes compute.
        turns: the steps from which other schedules hold.

    Raises:
        ValueError: the cut does not add up to the model, or a count is not positive.
    """

    spec: ModelSpec
    layers_per_stage: tuple[int, ...]
    optimizer: OptimizerSpec
    seed: int
    steps: int
    microbatches_per_step: int
    sequences_per_microbatch: int
    delayed: bool = False
    precision: Precision = DEFAULT
    turns: tuple[Turn, ...] = ()

    def __post_init__(self) -> None:
        if sum(self.layers_per_stage) != self.spec.layers:
            raise ValueError(f"{self.layers_per_stage} do not make {self.spec.layers} layers")
        slices(self.layers_per_stage)
        for name in ("steps", "microbatches_per_step", "sequences_per_microbatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def tokens_per_step(self) -> int:
        """Tokens whose loss one update averages."""
        sequences = self.microbatches_per_step * self.sequences_per_microbatch
        return sequences * self.spec.context


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
    A step's loss is that of the parameters its gradient is computed at, without the z-loss.
    """

    losses: tuple[float, ...]
    state: State


Wire = Callable[[Tensor, WireContext], Tensor]


def train_reference(
    plan: TrainingPlan,
    corpus: Corpus,
    *,
    wire: Wire | None = None,
    threads: int | None = None,
    on_step: Callable[[int, float], None] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> ReferenceRun:
    """Train `plan` on `corpus` in this process.

    Args:
        wire: encodes and decodes a boundary tensor (B, T, C) or its gradient; None: no cut.
        threads: CPU threads of torch during the run; None leaves them as they are.
        on_step: called with every step and its loss, after its update; with delayed updates
            before it, after that of the step before.
        start: the whole model's parameters to begin with; None: those of the plan's seed.

    Raises:
        DataError: the corpus is shorter than one sample.
    """
    parts = [whole_slice(plan.spec)] if wire is None else slices(plan.layers_per_stage)
    stages = [_stage(plan, part, start) for part in parts]
    for stage in stages:
        stage.precision = plan.precision
    groups = _stage_parameters(plan, stages)
    parameters = [p for group in groups for p in group]
    optimizer = _optimizer(plan, stages)
    losses = list[float]()
    pending: list[Tensor | None] = [None] * len(parameters)
    earlier: list[Tensor | None] = [None] * len(parameters)
    with limited_threads(threads):
        for step in range(plan.steps):
            now = _move_on(parameters, earlier) if plan.delayed else []
            losses.append(_accumulate(plan, corpus, stages, step, wire))
            if plan.delayed:
                earlier = _move_back(parameters, now)
                pending = _exchange(parameters, pending)
            if step or not plan.delayed:
                _update(plan, groups, optimizer, step - plan.delayed)
            if on_step is not None:
                on_step(step, losses[-1])
        if plan.delayed:
            _exchange(parameters, pending)
            _update(plan, groups, optimizer, plan.steps - 1)
    state = merge_states(stage.state_dict() for stage in stages)
    return ReferenceRun(tuple(losses), state)


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


def _stage(plan: TrainingPlan, part: StageSlice, start: Mapping[str, Tensor] | None) -> Stage:
    if start is None:
        return build_stage(plan.spec, part, plan.seed)
    return load_stage(plan.spec, part, initial_adapters(plan.spec, part, plan.seed) | dict(start))


def _stage_parameters(plan: TrainingPlan, stages: Iterable[Stage]) -> list[list[nn.Parameter]]:
    """The parameters of every stage of the plan's cut, wherever they lie."""
    every = (named for stage in stages for named in stage.named_parameters())
    named = {name: parameter for name, parameter in every if parameter.requires_grad}
    groups = []
    for part in slices(plan.layers_per_stage):
        groups.append([named[name] for name in stage_tensors(plan.spec, part)])
    return groups


def _optimizer(plan: TrainingPlan, stages: Iterable[Stage]) -> torch.optim.Optimizer:
    """The optimizer's twin. Only matrices decay; where it treats those of the layers as matrices,
    parameters whose matrices have the same rows are a group."""
    spec = plan.optimizer
    groups: dict[tuple[bool, tuple[int, ...]], list[nn.Parameter]] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            by_matrix = OPTIMIZERS[spec.name].by_matrix
            rows = rows_of(plan.spec, name, tuple(parameter.shape)) if by_matrix else ()
            groups.setdefault((parameter.ndim >= 2, rows), []).append(parameter)
    settings = (
        {"params": found, "weight_decay": spec.weight_decay if decays else 0.0, "rows": rows}
        for (decays, rows), found in groups.items()
    )
    return flat_optimizer(spec).twin(spec, settings)


def _accumulate(
    plan: TrainingPlan, corpus: Corpus, stages: Sequence[Stage], step: int, wire: Wire | None
) -> float:
    """Add the summed gradients of all microbatches of a step; its mean loss per token."""
    total = 0.0
    first = step * plan.microbatches_per_step
    for microbatch in range(first, first + plan.microbatches_per_step):
        rows = plan.sequences_per_microbatch
        samples = corpus.sample(microbatch, rows, plan.spec.context, plan.seed)
        inputs, targets, begins = _split(samples)
        x: Tensor = inputs  # (B, T)
        for index, stage in enumerate(stages):
            if wire is not None and index:
                x = _across(x, wire, step, microbatch, index - 1)  # (B, T, C)
            x = stage(x, begins)
        loss, whole = losses_of(
            x, targets, z_weight=plan.optimizer.z_loss, weight=corpus.loss_weight
        )
        whole.backward()  # type: ignore[no-untyped-call]
        total += loss.item() * shown_share(targets)
    return total / plan.tokens_per_step


@torch.no_grad()
def _move_on(parameters: Iterable[nn.Parameter], earlier: Iterable[Tensor | None]) -> list[Tensor]:
    """Change the parameters as much again as they have changed; returns what they were."""
    now = [parameter.detach().clone() for parameter in parameters]
    for parameter, was, is_now in zip(parameters, earlier, now, strict=True):
        if was is not None:
            parameter.add_(is_now - was)
    return now


@torch.no_grad()
def _move_back(parameters: Iterable[nn.Parameter], now: Iterable[Tensor]) -> list[Tensor | None]:
    """Give the parameters what they were; returns it."""
    for parameter, value in zip(parameters, now, strict=True):
        parameter.copy_(value)
    return list(now)


def _exchange(
    parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]
) -> list[Tensor | None]:
    """Give the parameters these gradients; returns those that they had."""
    had = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        had.append(parameter.grad)
        parameter.grad = gradient
    return had


def _update(
    plan: TrainingPlan,
    groups: Sequence[list[nn.Parameter]],
    optimizer: torch.optim.Optimizer,
    step: int,
) -> None:
    config = plan.optimizer
    for group in groups:
        for parameter in group:
            if parameter.grad is not None:
                parameter.grad.div_(plan.tokens_per_step)
        if config.clip > 0:
            nn.utils.clip_grad_norm_(group, stage_clip(config, len(groups)))
    for settings in optimizer.param_groups:
        settings["lr"] = Course(config, plan.turns).learning_rate(step)
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

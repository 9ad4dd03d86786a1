"""The reference trainer learns, repeats itself bit for bit, and simulates the wire."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
import torch
from torch import Tensor, nn

from client.compute.replica import squared_norm, step_scale
from client.lab.reference import (
    ReferenceRun,
    TrainingPlan,
    WireContext,
    evaluate,
    train_reference,
)
from model_zoo.datasets.corpus import Corpus
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.specs.local_rounds import LocalRounds
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage, summed_loss
from model_zoo.whole import build_whole, load_whole

SPEC = ModelSpec("gpt", 4, 32, 4, 4, 64, context=16)
OPTIMIZER = OptimizerSpec(3e-3, 3e-4, warmup_steps=5, decay_steps=40, beta2=0.95, clip=0.5)


def plan_for(spec: ModelSpec, cut: tuple[int, ...] = (2, 2), steps: int = 4) -> TrainingPlan:
    return TrainingPlan(spec, cut, OPTIMIZER, 11, steps, 2, 3)


def test_loss_falls(spec: ModelSpec, corpus: Corpus) -> None:
    seen: list[tuple[int, float]] = []
    plan = plan_for(spec, steps=40)
    run = train_reference(plan, corpus, on_step=lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(run.losses))
    assert run.losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256
    assert run.losses[-1] < run.losses[0] - 1.5
    model = load_whole(spec, run.state)
    held_out = evaluate(model, corpus, batches=3, sequences=4, context=spec.context)
    assert held_out == pytest.approx(run.losses[-1], abs=0.5)


def test_the_wire_sees_every_boundary_tensor_once(corpus: Corpus) -> None:
    spec = ModelSpec("gpt", 4, 32, 4, 4, 64, context=16)
    seen: list[WireContext] = []

    def wire(x: Tensor, place: WireContext) -> Tensor:
        assert x.shape == (3, 16, 32)
        seen.append(place)
        return x.clone()

    train_reference(plan_for(spec, (1, 2, 1), steps=2), corpus, wire=wire)
    expected = []
    for microbatch in range(4):
        step = microbatch // 2
        expected += [WireContext(step, microbatch, b, "forward") for b in (0, 1)]
        expected += [WireContext(step, microbatch, b, "backward") for b in (1, 0)]
    assert seen == expected


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_lossy_wire_is_felt(corpus: Corpus, direction: str) -> None:
    spec = ModelSpec("gpt", 4, 32, 4, 4, 64, context=16)

    def silence(x: Tensor, place: WireContext) -> Tensor:
        return torch.zeros_like(x) if place.direction == direction else x.clone()

    plan = plan_for(spec, steps=1)
    start = build_whole(spec, plan.seed).state_dict()
    state = train_reference(plan, corpus, wire=silence).state
    before_the_cut = "transformer.h.0.attn.c_attn.weight"
    no_decay = 1 - learning_rate(OPTIMIZER, 0) * OPTIMIZER.weight_decay
    moved = not torch.allclose(state[before_the_cut], start[before_the_cut] * no_decay, atol=1e-7)
    assert moved == (direction == "forward")


@pytest.mark.parametrize("change", [{}, {"clip": 0.0, "eps": 1e-3}], ids=["clip", "large-eps"])
def test_stages_with_the_flat_optimizer_agree(
    spec: ModelSpec, corpus: Corpus, change: dict[str, float]
) -> None:
    """Two implementations of one training: the swarm's arithmetic and the oracle.

    A large epsilon shows a wrong divisor, to which Adam is otherwise blind.
    """
    plan = plan_for(spec, (1, 3), steps=10)
    plan = replace(plan, optimizer=msgspec.structs.replace(OPTIMIZER, **change))  # type: ignore[arg-type]
    expected = train_reference(plan, corpus).losses
    stages = [build_stage(spec, part, plan.seed) for part in slices(plan.layers_per_stage)]
    flats = [FlatParameters(stage) for stage in stages]
    adamws = [FlatAdamW(flat.values, flat.decay_size, plan.optimizer) for flat in flats]
    losses = []
    for step in range(plan.steps):
        total = 0.0
        for microbatch in range(2 * step, 2 * step + 2):
            tokens = torch.from_numpy(corpus.sample(microbatch, 3, 16, plan.seed).astype("int64"))
            loss = summed_loss(stages[1](stages[0](tokens[:, :-1])), tokens[:, 1:])
            loss.backward()
            total += loss.item()
        losses.append(total / plan.tokens_per_step)
        for flat, adamw in zip(flats, adamws, strict=True):
            bound = stage_clip(plan.optimizer, 2)
            scale = step_scale(squared_norm(flat.gradients), plan.tokens_per_step, bound)
            adamw.step(flat.gradients, learning_rate(plan.optimizer, step), scale)
            flat.zero_gradients()
    assert losses == pytest.approx(expected, rel=1e-5)


def in_rounds(*, name: str = "adamw", momentum: float = 0.0, lr: float = 1.0) -> TrainingPlan:
    """Rounds of 8 microbatches, with an inner step after every 2."""
    optimizer = msgspec.structs.replace(OPTIMIZER, name=name, schedule="constant", warmup_steps=0)
    rounds = LocalRounds(2, outer_lr=lr, outer_momentum=momentum)
    return TrainingPlan(SPEC, (2, 2), optimizer, 11, 3, 8, 1, local_rounds=rounds)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_rounds_of_one_replica_are_smaller_steps(corpus: Corpus, name: str) -> None:
    plan = in_rounds(name=name)
    run = train_reference(plan, corpus)
    plain = train_reference(
        replace(plan, local_rounds=None, steps=12, microbatches_per_step=2), corpus
    )
    of_rounds = [sum(plain.losses[4 * step : 4 * step + 4]) / 4 for step in range(3)]
    assert run.losses == pytest.approx(of_rounds, rel=1e-5)
    for tensor, expected in zip(run.state.values(), plain.state.values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-3, atol=1e-5)


def test_the_last_inner_step_is_as_much_smaller_as_its_group(corpus: Corpus) -> None:
    """Without momentum two groups of two and one of one move by 2.5 inner steps."""
    optimizer = OptimizerSpec(0.1, 0.1, 0, 1, beta1=0, weight_decay=0, clip=0, name="sgd")
    rounds = LocalRounds(2)
    plan = TrainingPlan(SPEC, (4,), optimizer, 11, 1, 5, 1, local_rounds=rounds)
    model = build_whole(SPEC, plan.seed)
    flat = FlatParameters(model)
    for group in ((0, 1), (2, 3), (4,)):
        flat.values.sub_(0.1 * len(group) / 2 * mean_gradient(model, flat, corpus, group))
    assert_state(train_reference(plan, corpus), flat)


@pytest.mark.parametrize(("momentum", "lr"), [(0.0, 1.0), (0.0, 0.7), (0.6, 0.8)])
def test_versions_move_by_the_mean_of_the_replicas_differences(
    corpus: Corpus, momentum: float, lr: float
) -> None:
    """Against a plain reading: replicas that count unlike many microbatches, in orders of their
    own, keep AdamW's moments between rounds; the outer update is Nesterov's."""
    plan = in_rounds(momentum=momentum, lr=lr)
    counted = [
        [[5, 0, 3, 1, 7], [6, 2, 4]],
        [[9, 8], [10, 15, 14, 11, 13, 12]],
        [[], [*range(16, 24)]],
    ]
    run = train_reference(replace(plan, layers_per_stage=(4,)), corpus, dealt=counted.__getitem__)
    model = build_whole(SPEC, plan.seed)
    flat = FlatParameters(model)
    inners = [FlatAdamW(flat.values, flat.decay_size, plan.optimizer) for _ in range(2)]
    version, kept = flat.values.clone(), torch.zeros_like(flat.values)
    for dealt in counted:
        difference = torch.zeros_like(version)
        for inner, microbatches in zip(inners, dealt, strict=True):
            flat.values.copy_(version)
            for first in range(0, len(microbatches), 2):
                group = microbatches[first : first + 2]
                gradient = mean_gradient(model, flat, corpus, group)
                scale = min(1.0, plan.optimizer.clip / float(gradient.norm()))
                inner.step(gradient, OPTIMIZER.lr * len(group) / 2, scale)
            difference += (version - flat.values) * len(microbatches) / 8
        kept = momentum * kept + difference
        version -= lr * (difference + momentum * kept if momentum else difference)
    flat.values.copy_(version)
    assert_state(run, flat)


def mean_gradient(
    model: nn.Module, flat: FlatParameters, corpus: Corpus, microbatches: Sequence[int]
) -> Tensor:
    """Of single sequences."""
    flat.zero_gradients()
    for microbatch in microbatches:
        tokens = torch.from_numpy(corpus.sample(microbatch, 1, 16, 11).astype("int64"))
        summed_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    return flat.gradients / (16 * len(microbatches))


def assert_state(run: ReferenceRun, flat: FlatParameters) -> None:
    for name, expected in flat.state().items():
        torch.testing.assert_close(run.state[name], expected, rtol=1e-4, atol=1e-5)

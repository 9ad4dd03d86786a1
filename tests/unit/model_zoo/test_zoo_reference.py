"""The reference trainer learns, and agrees with the flat optimizer."""

from dataclasses import replace

import msgspec
import pytest
import torch

from client.compute.replica import squared_norm, step_scale
from client.lab.reference import TrainingPlan, evaluate, train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.flat import FlatParameters
from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip
from model_zoo.specs.slices import slices
from model_zoo.stages import build_stage, load_whole, summed_loss

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

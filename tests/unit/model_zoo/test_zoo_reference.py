"""The reference trainer learns."""

import pytest

from client.lab.reference import TrainingPlan, evaluate, train_reference
from model_zoo.datasets.corpus import Corpus
from model_zoo.specs.model import ModelSpec
from model_zoo.specs.optimizer import OptimizerSpec
from model_zoo.stages import load_whole

OPTIMIZER = OptimizerSpec(3e-3, 3e-4, warmup_steps=5, decay_steps=40, beta2=0.95, clip=0.5)


def test_loss_falls(spec: ModelSpec, corpus: Corpus) -> None:
    seen: list[tuple[int, float]] = []
    plan = TrainingPlan(spec, (2, 2), OPTIMIZER, 11, 40, 2, 3)
    run = train_reference(plan, corpus, on_step=lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(run.losses))
    assert run.losses[0] == pytest.approx(5.55, abs=0.1)  # ln 256
    assert run.losses[-1] < run.losses[0] - 1.5
    model = load_whole(spec, run.state)
    held_out = evaluate(model, corpus, batches=3, sequences=4, context=spec.context)
    assert held_out == pytest.approx(run.losses[-1], abs=0.5)

"""Every optimizer agrees with its twin, and ends with the same bits however it is run."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from client.lab.twins import twin
from model_zoo import vectors
from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.optimizers.optimizer import FlatOptimizer, flat_optimizer
from model_zoo.specs.optimizer import OPTIMIZERS, OptimizerSpec, learning_rate

Build = Callable[[torch.Tensor, int], FlatOptimizer]


@pytest.fixture(params=list(OPTIMIZERS))
def spec(request: pytest.FixtureRequest) -> OptimizerSpec:
    return OptimizerSpec(1e-3, 1e-4, warmup_steps=100, decay_steps=2000, name=request.param)


@pytest.fixture
def build(spec: OptimizerSpec) -> Build:
    return lambda values, decay_size: flat_optimizer(spec)(values, decay_size, spec)


def random(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize("decay_size", [0, 60, 100])
def test_equals_its_twin(
    monkeypatch: pytest.MonkeyPatch, spec: OptimizerSpec, build: Build, chunk: int, decay_size: int
) -> None:
    monkeypatch.setattr(vectors, "_CPU_CHUNK", chunk)
    start = random(100, 0)
    mine = build(start.clone(), decay_size)
    decayed = torch.nn.Parameter(start[:decay_size].clone())
    others = torch.nn.Parameter(start[decay_size:].clone())
    groups = [
        {"params": [decayed], "weight_decay": spec.weight_decay},
        {"params": [others], "weight_decay": 0.0},
    ]
    theirs = twin(spec, groups)
    for step in range(50):
        gradient, lr = random(100, step + 1), learning_rate(spec, step)
        decayed.grad, others.grad = 0.5 * gradient[:decay_size], 0.5 * gradient[decay_size:]
        for group in theirs.param_groups:
            group["lr"] = lr
        theirs.step()
        before = gradient.clone()
        mine.step(gradient, lr, scale=0.5)
        assert torch.equal(gradient, before)
    expected = torch.cat((decayed.detach(), others.detach()))
    torch.testing.assert_close(mine.values, expected, rtol=1e-6, atol=1e-6)
    assert mine.steps_done == 50


def test_a_state_restored_elsewhere_goes_on_with_the_same_bits(
    spec: OptimizerSpec, build: Build
) -> None:
    first = build(random(64, 0), 32)
    for step in range(3):
        first.step(random(64, step + 1), 1e-3)
    second = build(first.values.clone(), 32)
    assert len(second.vectors) == len(OPTIMIZERS[spec.name].vectors)
    for mine, theirs in zip(second.vectors, first.vectors, strict=True):
        mine.copy_(theirs)
    second.steps_done = first.steps_done
    for each in (first, second):
        each.step(random(64, 9), 1e-3)
    assert torch.equal(first.values, second.values)


def test_bits_do_not_depend_on_the_vector_width(
    monkeypatch: pytest.MonkeyPatch, build: Build
) -> None:
    """Vector code and the scalar remainder loop, chunk by chunk, give the same roundings."""
    results = []
    for chunk in (1, 3, 64, 1 << 18):
        monkeypatch.setattr(vectors, "_CPU_CHUNK", chunk)
        mine = build(random(257, 0), 100)
        for step in range(5):
            mine.step(random(257, step + 1), 1e-3, scale=1 / 3)
        results.append(mine.values)
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_bits_of_adamw_are_those_of_single_roundings() -> None:
    """NumPy's fp32 operations round once each, as IEEE 754 says; torch's must do the same."""
    spec = OptimizerSpec(1e-3, 1e-4, beta2=0.99, weight_decay=0.1)
    mine = FlatAdamW(random(1000, 0), 600, spec)
    f32, p = np.float32, random(1000, 0).numpy()
    m, v = np.zeros(1000, f32), np.zeros(1000, f32)
    for step in range(1, 11):
        gradient = random(1000, step) * 10.0 ** -(2 * step)  # down to denormal squares
        mine.step(gradient, 1e-3, scale=1 / 3)
        p[:600] *= f32(1 - 1e-3 * 0.1)
        g = gradient.numpy() * f32(1 / 3)
        m = m * f32(0.9) + g * f32(1 - 0.9)
        v = v * f32(0.99) + (g * g) * f32(1 - 0.99)
        denominator = np.sqrt(v) * f32(1 / math.sqrt(1 - 0.99**step)) + f32(1e-8)
        p = p + (m / denominator) * f32(-1e-3 / (1 - 0.9**step))
    assert np.array_equal(mine.values.numpy(), p)

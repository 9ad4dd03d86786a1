"""The flat optimizer agrees with torch's; the schedule and the clip factor with their tables."""

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from model_zoo.optimizers import adamw
from model_zoo.optimizers.adamw import FlatAdamW, clip_factor
from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip

CONFIG = OptimizerSpec(1e-3, 1e-4, warmup_steps=100, decay_steps=2000, beta2=0.99, weight_decay=0.1)


def random(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize("decay_size", [0, 60, 100])
def test_equals_torch_adamw(monkeypatch: pytest.MonkeyPatch, chunk: int, decay_size: int) -> None:
    monkeypatch.setattr(adamw, "_CPU_CHUNK", chunk)
    start = random(100, 0)
    mine = FlatAdamW(start.clone(), decay_size, CONFIG)
    decayed = torch.nn.Parameter(start[:decay_size].clone())
    others = torch.nn.Parameter(start[decay_size:].clone())
    theirs = torch.optim.AdamW(
        [{"params": [decayed]}, {"params": [others], "weight_decay": 0.0}],
        lr=1.0,
        betas=(CONFIG.beta1, CONFIG.beta2),
        eps=CONFIG.eps,
        weight_decay=CONFIG.weight_decay,
    )
    for step in range(50):
        gradient, lr = random(100, step + 1), learning_rate(CONFIG, step)
        decayed.grad, others.grad = 0.5 * gradient[:decay_size], 0.5 * gradient[decay_size:]
        for group in theirs.param_groups:
            group["lr"] = lr
        theirs.step()
        mine.step(gradient, lr, scale=0.5)
    expected = torch.cat((decayed.detach(), others.detach()))
    torch.testing.assert_close(mine.values, expected, rtol=1e-6, atol=1e-6)
    assert mine.steps_done == 50


def test_step_leaves_the_gradient_alone() -> None:
    gradient = random(10, 1)
    before = gradient.clone()
    FlatAdamW(random(10, 0), 5, CONFIG).step(gradient, 1e-3, scale=0.1)
    assert torch.equal(gradient, before)


def test_moments_restored_elsewhere_go_on_with_the_same_bits() -> None:
    first = FlatAdamW(random(64, 0), 32, CONFIG)
    for step in range(3):
        first.step(random(64, step + 1), 1e-3)
    second = FlatAdamW(first.values.clone(), 32, CONFIG)
    second.first_moment.copy_(first.first_moment)
    second.second_moment.copy_(first.second_moment)
    second.steps_done = first.steps_done
    for optimizer in (first, second):
        optimizer.step(random(64, 9), 1e-3)
    assert torch.equal(first.values, second.values)


def test_bits_are_those_of_single_roundings() -> None:
    """NumPy's fp32 operations round once each, as IEEE 754 says; torch's must do the same."""
    mine = FlatAdamW(random(1000, 0), 600, CONFIG)
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


def test_bits_do_not_depend_on_the_vector_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector code and the scalar remainder loop, chunk by chunk, give the same roundings."""
    results = []
    for chunk in (1, 3, 64, 1 << 18):
        monkeypatch.setattr(adamw, "_CPU_CHUNK", chunk)
        mine = FlatAdamW(random(257, 0), 100, CONFIG)
        for step in range(5):
            mine.step(random(257, step + 1), 1e-3, scale=1 / 3)
        results.append(mine.values)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1e-3 / 101),
        (49, 1e-3 * 50 / 101),
        (99, 1e-3 * 100 / 101),
        (100, 1e-3),
        (575, 1e-4 + 9e-4 * 0.5 * (1 + math.sqrt(0.5))),
        (1050, 5.5e-4),
        (1525, 1e-4 + 9e-4 * 0.5 * (1 - math.sqrt(0.5))),
        (2000, 1e-4),
        (5000, 1e-4),
    ],
)
def test_learning_rate(step: int, expected: float) -> None:
    assert learning_rate(CONFIG, step) == pytest.approx(expected, rel=1e-12)


def test_learning_rate_without_warmup_or_decay() -> None:
    flat = replace(CONFIG, warmup_steps=0, decay_steps=0)
    assert learning_rate(flat, 0) == CONFIG.min_lr
    assert learning_rate(replace(CONFIG, warmup_steps=0), 0) == CONFIG.lr


@pytest.mark.parametrize(
    ("gradient", "scale", "largest", "expected"),
    [
        ([3.0, 4.0], 1.0, 10.0, 1.0),
        ([3.0, 4.0], 1.0, 1.0, 0.2),
        ([3.0, 4.0], 0.1, 1.0, 0.1),
        ([3.0, 4.0], 0.5, 1.0, 0.2),
        ([3.0, 4.0], 0.5, 0.0, 0.5),
        ([0.0, 0.0], 0.5, 1.0, 0.5),
        ([1e30, 0.0], 1.0, 1.0, 1e-30),
    ],
)
def test_clip_factor(gradient: list[float], scale: float, largest: float, expected: float) -> None:
    assert clip_factor(torch.tensor(gradient), scale, largest) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_clip_factor_refuses_a_poisoned_gradient(poison: float) -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        clip_factor(torch.tensor([1.0, poison]), 1.0, 1.0)


def test_stage_clips_bound_the_whole_norm() -> None:
    assert stage_clip(CONFIG, 1) == 1.0
    assert math.sqrt(4 * stage_clip(CONFIG, 4) ** 2) == pytest.approx(CONFIG.clip)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"min_lr": 1.0},
        {"warmup_steps": 3000},
        {"beta1": 1.0},
        {"beta2": -0.1},
        {"eps": 0.0},
        {"weight_decay": float("inf")},
        {"clip": -1.0},
    ],
)
def test_config_refuses(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="optimizer needs"):
        replace(CONFIG, **change)  # type: ignore[arg-type]

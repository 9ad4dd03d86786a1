"""Schedule and clip of a stage agree with their tables; numbers out of range are refused."""

import math

import pytest
from msgspec.structs import replace

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip

CONFIG = OptimizerSpec(1e-3, 1e-4, warmup_steps=100, decay_steps=2000, beta2=0.99, weight_decay=0.1)


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


def with_wsd(start: int) -> OptimizerSpec:
    return replace(CONFIG, schedule="wsd", decay_from=start)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        *((0, 1e-3 / 101), (99, 1e-3 * 100 / 101)),
        *((100, 1e-3), (1600, 1e-3), (1700, 7.75e-4), (1800, 5.5e-4)),
        *((2000, 1e-4), (5000, 1e-4)),
    ],
)
def test_warm_up_stable_decay(step: int, expected: float) -> None:
    assert learning_rate(with_wsd(1600), step) == pytest.approx(expected, rel=1e-12)


def test_warm_up_stable_decay_with_empty_phases() -> None:
    assert learning_rate(with_wsd(2000), 1999) == pytest.approx(CONFIG.lr)
    assert learning_rate(with_wsd(2000), 2000) == CONFIG.min_lr
    assert learning_rate(with_wsd(100), 100) == pytest.approx(CONFIG.lr)


def test_a_constant_rate_stays_after_the_warm_up() -> None:
    constant = replace(CONFIG, schedule="constant")
    assert learning_rate(constant, 50) == learning_rate(CONFIG, 50)
    for step in (100, 2000, 10**6):
        assert learning_rate(constant, step) == pytest.approx(CONFIG.lr)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": "stairs"}, "known are cosine, constant, wsd"),
        ({"schedule": "wsd"}, "decay_from belongs to"),
        ({"schedule": "constant", "decay_from": 1600}, "decay_from belongs to"),
        ({"decay_from": 1600}, "decay_from belongs to"),
        ({"schedule": "wsd", "decay_from": 99}, "warmup_steps <= decay_from"),
        ({"schedule": "wsd", "decay_from": 2001}, "warmup_steps <= decay_from"),
    ],
)
def test_a_schedule_has_one_spelling(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **change)


def test_stage_clips_bound_the_whole_norm() -> None:
    assert stage_clip(CONFIG, 1) == 1.0
    assert math.sqrt(4 * stage_clip(CONFIG, 4) ** 2) == pytest.approx(CONFIG.clip)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr": 11.0},
        {"min_lr": 1.0},
        {"warmup_steps": 3000},
        {"beta1": 1.0},
        {"eps": 0.0},
        {"eps": 2.0},
        {"weight_decay": float("inf")},
        {"weight_decay": 11.0},
        {"clip": -1.0},
        {"z_loss": float("nan")},
        {"z_loss": 2.0},
    ],
)
def test_config_refuses(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"optimizer needs|should be"):
        replace(CONFIG, **change)

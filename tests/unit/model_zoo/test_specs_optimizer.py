"""Schedule and clip of a stage agree with their tables; numbers out of range are refused."""

import math

import pytest
from msgspec.structs import replace

from model_zoo.specs.optimizer import OptimizerSpec, learning_rate, stage_clip

CONFIG = OptimizerSpec(1e-3, 1e-4, warmup_steps=100, decay_steps=2000, beta2=0.99, weight_decay=0.1)


WARM_UP = {0: 1e-3 / 101, 49: 1e-3 * 50 / 101, 99: 1e-3 * 100 / 101, 100: 1e-3}
COSINE = {
    575: 1e-4 + 9e-4 * 0.5 * (1 + math.sqrt(0.5)),
    1050: 5.5e-4,
    1525: 1e-4 + 9e-4 * 0.5 * (1 - math.sqrt(0.5)),
    2000: 1e-4,
    5000: 1e-4,
}
STABLE = {1600: 1e-3, 1700: 7.75e-4, 1800: 5.5e-4, 2000: 1e-4, 5000: 1e-4}


@pytest.mark.parametrize(
    ("change", "rates"),
    [
        ({}, WARM_UP | COSINE),
        ({"warmup_steps": 0}, {0: 1e-3}),
        ({"warmup_steps": 0, "decay_steps": 0}, {0: 1e-4}),
        ({"schedule": "wsd", "decay_from": 1600}, WARM_UP | STABLE),
        ({"schedule": "wsd"}, WARM_UP | STABLE),
        ({"schedule": "wsd", "warmup_steps": 1900}, {1900: 1e-3, 1950: 5.5e-4}),
        ({"schedule": "wsd", "decay_from": 2000}, {1999: 1e-3, 2000: 1e-4}),
        ({"schedule": "wsd", "decay_from": 100}, {100: 1e-3}),
        ({"schedule": "constant"}, WARM_UP | {2000: 1e-3, 10**6: 1e-3}),
    ],
)
def test_learning_rates(change: dict[str, object], rates: dict[int, float]) -> None:
    found = {step: learning_rate(replace(CONFIG, **change), step) for step in rates}
    assert found == pytest.approx(rates, rel=1e-12)


OUT_OF_RANGE = [
    ("lr", 0.0),
    ("lr", float("nan")),
    ("lr", 11.0),
    ("min_lr", 1.0),
    ("warmup_steps", 3000),
    ("beta1", 1.0),
    ("eps", 0.0),
    ("eps", 2.0),
    ("weight_decay", float("inf")),
    ("weight_decay", 11.0),
    ("clip", -1.0),
]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": "stairs"}, "known are cosine, constant, wsd"),
        ({"schedule": "constant", "decay_from": 1600}, "decay_from belongs to"),
        ({"decay_from": 1600}, "decay_from belongs to"),
        ({"schedule": "wsd", "decay_from": 99}, "warmup_steps <= decay_from"),
        ({"schedule": "wsd", "decay_from": 2001}, "warmup_steps <= decay_from"),
        *(({name: number}, "optimizer needs|should be") for name, number in OUT_OF_RANGE),
    ],
)
def test_config_refuses(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **change)


def test_stage_clips_bound_the_whole_norm() -> None:
    assert stage_clip(CONFIG, 1) == 1.0
    assert math.sqrt(4 * stage_clip(CONFIG, 4) ** 2) == pytest.approx(CONFIG.clip)

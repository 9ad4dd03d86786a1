"""AdamW, bit by bit."""

import math

import numpy as np
import torch

from model_zoo.optimizers.adamw import FlatAdamW
from model_zoo.specs.optimizer import OptimizerSpec

CONFIG = OptimizerSpec(1e-3, 1e-4, warmup_steps=100, decay_steps=2000, beta2=0.99, weight_decay=0.1)


def random(size: int, seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


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

"""The factor of a step's gradient sum."""

import pytest
import torch

from client.compute.replica import squared_norm, step_scale


@pytest.mark.parametrize(
    ("gradient", "tokens", "largest", "expected"),
    [
        ([3.0, 4.0], 1, 10.0, 1.0),
        ([3.0, 4.0], 1, 1.0, 0.2),
        ([3.0, 4.0], 10, 1.0, 0.1),
        ([3.0, 4.0], 2, 1.0, 0.2),
        ([3.0, 4.0], 2, 0.0, 0.5),
        ([0.0, 0.0], 2, 1.0, 0.5),
        ([1e30, 0.0], 1, 1.0, 1e-30),
    ],
)
def test_a_large_gradient_is_clipped(
    gradient: list[float], tokens: int, largest: float, expected: float
) -> None:
    norm = squared_norm(torch.tensor(gradient))
    assert step_scale(norm, tokens, largest) == pytest.approx(expected, rel=1e-6)

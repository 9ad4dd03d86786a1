"""Tensors far from the usual size are refused before a pass runs on them; honest ones never are."""

import pytest
import torch

from client.compute.errors import OutlierTensor
from client.compute.outliers import LEAST, MAX_SEEN, WIDTH, WINDOW, OutlierFilter


def tensor(log2_size: float) -> torch.Tensor:
    return torch.full((4, 8), 2.0**log2_size)


def learned(log2_size: float = -3.0, passed: int = 1) -> OutlierFilter:
    outliers = OutlierFilter({"forward": passed, "backward": 1})
    for microbatch in range(WINDOW):
        outliers.check(tensor(log2_size), "forward", microbatch).now()
        outliers.count(microbatch)
    return outliers


@pytest.mark.parametrize("size", [60.0, 100.0, -60.0, -126.0])
def test_the_absurd_is_refused_from_the_start(size: float) -> None:
    with pytest.raises(OutlierTensor) as refused:
        OutlierFilter({"forward": 1}).check(tensor(size), "forward", 0).now()
    assert refused.value.part == 0


def test_zeros_and_what_overflows_are_refused() -> None:
    for numbers in (torch.zeros(4), torch.full((4,), 3e38)):
        with pytest.raises(OutlierTensor):
            OutlierFilter({"forward": 1}).check(numbers, "forward", 0).now()


@pytest.mark.parametrize("away", [WIDTH + 0.5, -WIDTH - 0.5])
def test_what_is_far_from_the_usual_is_refused(away: float) -> None:
    outliers = learned(-3.0)
    with pytest.raises(OutlierTensor):
        outliers.check(tensor(-3.0 + away), "forward", 999).now()
    outliers.check(tensor(-3.0 + away / 1.2), "forward", 999).now()


def test_one_large_number_among_many_is_found() -> None:
    numbers = tensor(-3.0)
    numbers[1, 2] = 1e6
    with pytest.raises(OutlierTensor):
        learned(-3.0).check(numbers, "forward", 999).now()


def test_what_an_honest_stage_lets_through_is_not_refused_by_the_next() -> None:
    """It would be blamed for what it was given."""
    passed_on = tensor(-3.0 + WIDTH + 1.0)
    learned(-3.0, passed=2).check(passed_on, "forward", 999).now()


def test_only_what_is_counted_teaches() -> None:
    outliers = learned(-3.0)
    for microbatch in range(1000, 1000 + 4 * MAX_SEEN):
        outliers.check(tensor(4.0), "forward", microbatch).now()
    assert len(outliers._seen) == MAX_SEEN
    with pytest.raises(OutlierTensor):
        outliers.check(tensor(9.0), "forward", 9999).now()


def test_the_usual_follows_training() -> None:
    outliers = OutlierFilter({"forward": 1})
    for microbatch in range(40 * WINDOW):
        outliers.check(tensor(-10.0 + microbatch / WINDOW), "forward", microbatch).now()
        outliers.count(microbatch)


def test_a_few_strange_ones_shift_nothing() -> None:
    outliers = learned(-3.0)
    for microbatch in range(1000, 1000 + LEAST):
        outliers.check(tensor(6.0), "forward", microbatch).now()
        outliers.count(microbatch)
    with pytest.raises(OutlierTensor):
        outliers.check(tensor(8.0), "forward", 9999).now()

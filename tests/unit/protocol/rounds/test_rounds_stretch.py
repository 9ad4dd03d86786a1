"""How much farther than the mean of a local round a version goes."""

import pytest

from protocol.rounds.stretch import stretch


@pytest.mark.parametrize(
    ("counts", "sq_norm", "own_sq_norm", "factor"),
    [
        ((2, 2), 4.0**2, 1.0, 1.0),  # all have gone the same way
        ((1, 1, 1, 1), 0.5 * 4.0**2, 1.0, 2**0.5),
        ((1, 1, 1, 1), 0.25 * 4.0**2, 1.0, 1.5),  # at right angles to each other
        ((1, 1, 1, 1), 1.0, 1e30, 1.5),  # whatever an owner says
        ((3, 0, 1, 0), 1.0, 1e30, 0.75 * 2**0.5),  # two have done nothing
        ((1, 1), 4.0, 1e-9, 1.0),
        ((1, 1), 4.0, 0.0, 1.0),  # no local round
        ((1, 1), 0.0, 1.0, 1.0),
        ((5,), 25.0, 1e30, 1.0),
        ((0, 0), 1.0, 1.0, 1.0),
    ],
)
def test_a_version_goes_as_far_as_one_replica_has(
    counts: tuple[int, ...], sq_norm: float, own_sq_norm: float, factor: float
) -> None:
    assert stretch(counts, sq_norm, own_sq_norm) == pytest.approx(factor)

"""The yardstick of the live bench: the best homes, and what second seats make of given ones."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.matching_optimum import Seats, best_homes, homes_level, shared_level

RATES = st.lists(st.tuples(*[st.floats(0.1, 10.0)] * 3), min_size=3, max_size=5)


@given(RATES)
def test_no_assignment_is_better_than_the_best(rates: list[tuple[float, ...]]) -> None:
    best, homes = best_homes(rates)
    named = {str(i): row for i, row in enumerate(rates)}
    levels = [
        homes_level(named, {str(i): Seats(home) for i, home in enumerate(tried)})
        for tried in product(range(3), repeat=len(rates))
    ]
    assert best == pytest.approx(max(levels))
    assert best == pytest.approx(
        homes_level(named, {str(i): Seats(h) for i, h in enumerate(homes)})
    )


def test_a_second_seat_evens_two_stages_out() -> None:
    rates = {"a": (4.0, 4.0), "b": (1.0, 1.0)}
    seats = {"a": Seats(0), "b": Seats(1)}
    assert homes_level(rates, seats) == 1.0
    assert shared_level(rates, seats) == pytest.approx(1.0, rel=1e-4)
    assert shared_level(rates, {**seats, "a": Seats(0, 1)}) == pytest.approx(2.5, rel=1e-4)
    assert shared_level(rates, {**seats, "a": Seats(1, 0), "b": Seats(0)}) == pytest.approx(
        2.5, rel=1e-4
    )

"""Shares of memory: who comes first has it, and no user is left with less than an equal part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.limits.memory_shares import memory_left

ME, OTHER, THIRD = 1000, 1001, 1002


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], 100),
        ([(ME, 30)], 70),
        ([(ME, 30), (ME, 50)], 20),
        ([(ME, 130)], 0),
        ([(OTHER, 30)], 70),
        ([(OTHER, 2**60)], 50),
        ([(OTHER, 2**60)] * 9, 50),
        ([(OTHER, 2**60), (THIRD, 2**60)], 33),
        ([(OTHER, 30), (ME, 30)], 40),
        ([(OTHER, 2**60), (ME, 30)], 20),
    ],
)
def test_what_is_left(others: list[tuple[int, int]], left: int) -> None:
    assert memory_left(100, 100, ME, others) == left


def test_an_equal_part_is_no_more_than_what_is_really_free() -> None:
    assert memory_left(100, 35, ME, [(OTHER, 80)]) == 35
    assert memory_left(100, 10, ME, [(OTHER, 80)]) == 20, "what the other leaves by its own words"


@given(
    total=st.integers(0, 2**50),
    free=st.integers(0, 2**50),
    others=st.lists(st.tuples(st.sampled_from([ME, OTHER, THIRD]), st.integers(0, 2**60))),
)
def test_it_is_never_more_than_there_is_nor_taken_from_our_own(
    total: int, free: int, others: list[tuple[int, int]]
) -> None:
    own = sum(size for user, size in others if user == ME)
    left = memory_left(total, free, ME, others)
    assert 0 <= left <= max(0, total - own)
    assert left >= min(free, total // 3) - own

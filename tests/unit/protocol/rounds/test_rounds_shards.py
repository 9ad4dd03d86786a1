"""Shards: they cut the gradient into parts that fit."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.rounds.shards import (
    ALIGN,
    ENOUGH,
    SEGMENT,
    check_bounds,
    largest_segment,
    most_segments,
    owning,
    segmented,
    shard_bounds,
)

OWNS = st.lists(st.booleans(), min_size=1, max_size=limits.MAX_REPLICAS_IN_ROUND).filter(any)
SIZES = st.integers(1, 10**7)


@given(st.integers(10**5, 10**7), OWNS)
def test_bounds_follow_the_shares(size: int, owns: list[bool]) -> None:
    bounds = shard_bounds(size, owns)
    for (start, end), own in zip(itertools.pairwise(bounds), owns, strict=True):
        assert abs((end - start) - own / sum(owns) * size) <= ALIGN


@pytest.mark.parametrize(
    "bounds",
    [
        [],
        [0],
        [0, 512],
        [0, 128, 256, 512],
        [0, 128, 384, 256, 512],
        [128, 256, 512],
        [0, 256, 511],
        [0, 256, 513],
        [0, 640, 512],
        [0, 100, 512],
        [0, -128, 512],
    ],
)
def test_wrong_bounds(bounds: list[int]) -> None:
    assert not check_bounds(bounds, 2, 512)


def test_no_bounds_are_wrong_for_one_member_too() -> None:
    assert not check_bounds([], 1, 512)


def test_a_last_odd_shard_may_be_empty() -> None:
    assert check_bounds([0, 500, 500], 2, 500)
    assert not check_bounds([0, 499, 500], 2, 500)


@given(SIZES | st.integers(10**6, limits.MAX_STAGE_PARAMETERS), OWNS)
def test_segments_cut_each_shard_alike(size: int, owns: list[bool]) -> None:
    shards = shard_bounds(size, owns)
    bounds = segmented(shards)
    assert check_bounds(bounds, len(owns), size)
    count = (len(bounds) - 1) // len(owns)
    assert count <= most_segments(size)
    assert bounds[::count] == shards
    largest = max(b - a for a, b in itertools.pairwise(shards))
    assert count == 1 or largest >= count * SEGMENT
    for owner, (start, end) in enumerate(itertools.pairwise(shards)):
        own = bounds[owner * count : (owner + 1) * count + 1]
        longest = max(b - a for a, b in itertools.pairwise(own))
        assert longest < (end - start) / count + 2 * ALIGN


@pytest.mark.parametrize(
    ("size", "segments"),
    [
        (1, 1),
        (4 * SEGMENT, 1),
        (8 * SEGMENT, 2),
        (10**8, ENOUGH),
        (10**9, 16),
        (4 * 8 * limits.MAX_SEGMENT_ELEMENTS, 9),  # for its ends are aligned
    ],
)
def test_as_many_segments_as_pay(size: int, segments: int) -> None:
    cut = segmented(shard_bounds(size, [True] * 4))
    assert len(cut) == 4 * segments + 1
    assert max(b - a for a, b in itertools.pairwise(cut)) <= limits.MAX_SEGMENT_ELEMENTS


def test_more_segments_than_anybody_needs_are_refused() -> None:
    most = limits.MAX_SEGMENTS // 2
    for count, right in ((most, True), (most + 1, False)):
        bounds = [ALIGN * k for k in range(2 * count + 1)]
        assert check_bounds(bounds, 2, bounds[-1]) == right


@pytest.mark.parametrize(
    ("size", "most"),
    [
        (4 * SEGMENT, 2 * SEGMENT),
        (64 * SEGMENT, 8 * SEGMENT + ALIGN),
        (10**9, limits.MAX_SEGMENT_ELEMENTS),
    ],
)
def test_a_segment_that_is_larger_than_need_be_is_refused(size: int, most: int) -> None:
    """Its bytes are kept before the plan is known, of every sibling."""
    assert largest_segment(size) == most
    cut = list(range(0, size, most))
    assert check_bounds([*cut, size], 1, size)
    assert not check_bounds([0, *(at + ALIGN for at in cut[1:]), size], 1, size)


@pytest.mark.parametrize("up", [0.05, 0.45])
@pytest.mark.parametrize("count", [2, 3, 16])
def test_who_has_a_much_slower_line_owns_nothing_of_three_or_more(count: int, up: float) -> None:
    for line in ((up, 9.0), (9.0, up), (up, up)):
        assert owning([(1.0, 1.0)] * (count - 1) + [line])[-1] == (count == 2)
    assert all(owning([(1.0, 1.0)] * count + [(0.0, up)])), "its line is unknown"


@given(st.lists(st.floats(0.01, 1e12), min_size=4, max_size=4))
def test_nobody_owns_more_than_its_equals_for_its_word(lines: list[float]) -> None:
    fast, owns = sorted(lines)[-2:], owning([(line, 1e13) for line in lines])
    assert all(one for one, line in zip(owns, lines, strict=True) if line in fast)

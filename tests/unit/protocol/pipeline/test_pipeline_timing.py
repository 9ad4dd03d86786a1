"""Durations and waits: generous at first, then as measured, always bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pipeline.timing import (
    ANSWER_S,
    GRADIENT,
    MIN_SAMPLES,
    MOST_ANSWER_S,
    MOST_TIMES,
    RECEIPT,
    Bounds,
    Timing,
    answer_s,
    wait_s,
)


def taught(*seconds: float, queue: int = 1) -> Timing:
    timing = Timing()
    for sample in seconds:
        timing.note(sample, queue)
    return timing


def test_the_first_sample_and_the_next_as_in_rfc_6298() -> None:
    timing = taught(4.0)
    assert (timing.mean_s, timing.deviation_s) == (4.0, 2.0)
    timing.note(8.0)
    assert timing.deviation_s == 2.0 + (4.0 - 2.0) / 4
    assert timing.mean_s == 4.0 + (8.0 - 4.0) / 8


def test_more_work_takes_longer_and_is_no_deviation() -> None:
    timing = taught(*[1.0] * 40, queue=2)
    assert timing.expected_s(2) == timing.expected_s(1) == pytest.approx(1.0)
    assert timing.expected_s(8) == pytest.approx(4.0)
    before = timing.deviation_s
    timing.note(4.0, queue=8)
    assert timing.deviation_s <= before
    assert timing.mean_s == pytest.approx(1.0)


def test_what_is_not_done_yet_counts_only_if_it_has_taken_long() -> None:
    timing = taught(1.0, 1.0, 1.0)
    timing.at_least(0.5)
    assert (timing.samples, timing.mean_s) == (3, 1.0)
    timing.at_least(9.0)
    assert timing.mean_s == 2.0
    unknown = Timing()
    unknown.at_least(9.0)
    assert not unknown.samples


def test_an_answer_may_take_what_receipts_take_within_bounds() -> None:
    assert answer_s(Timing()) == answer_s(taught(9.0)) == ANSWER_S
    assert answer_s(taught(0.1, 0.1, 0.1)) == ANSWER_S
    slow = taught(*[2.0] * 20)
    assert answer_s(slow) == slow.late_s() > ANSWER_S
    assert answer_s(taught(*[60.0] * 20)) == MOST_ANSWER_S


@pytest.mark.parametrize("bounds", [RECEIPT, GRADIENT])
def test_generous_until_measured(bounds: Bounds) -> None:
    few = taught(*[0.1] * (MIN_SAMPLES - 1))
    assert wait_s(Timing(), [], bounds) == bounds.unmeasured_s
    assert wait_s(few, [few], bounds) == bounds.unmeasured_s
    assert wait_s(taught(*[0.1] * MIN_SAMPLES), [], bounds) < bounds.most_s


def test_measured_siblings_judge_a_newcomer_however_many_have_shown_nothing() -> None:
    fast, slow = taught(*[1.0] * 9), taught(*[4.0] * 9)
    assert wait_s(Timing(), [Timing(), Timing()], GRADIENT) == GRADIENT.unmeasured_s
    assert wait_s(Timing(), [fast, Timing()], GRADIENT) == wait_s(Timing(), [fast], GRADIENT) == 3.0
    assert wait_s(Timing(), [fast, slow], GRADIENT) == 3 * slow.mean_s - ANSWER_S


@given(st.lists(st.floats(1e-6, 1e4), min_size=MIN_SAMPLES, max_size=60), st.integers(1, 64))
def test_the_hung_are_given_up_in_time_whatever_was_measured(
    samples: list[float], queue: int
) -> None:
    timing = taught(*samples)
    normal_s = timing.expected_s(queue)
    for bounds, most_s in ((GRADIENT, 6.0), (RECEIPT, 3.0)):
        waited_s = wait_s(timing, [], bounds, queue) + ANSWER_S
        assert waited_s <= max(most_s, MOST_TIMES * normal_s) + 1e-9
        assert waited_s >= bounds.least_s + ANSWER_S


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-12])
def test_impossible_times_are_bounded(seconds: float) -> None:
    assert taught(*[seconds] * 50).expected_s() > 0

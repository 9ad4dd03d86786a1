"""Durations and waits: generous at first, then as measured, always bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import peer_id_from_key
from protocol.pace import ANSWER_S, LOOK_S
from protocol.pipeline.next_hop import MOST_TIMES, NextHop
from protocol.pipeline.timing import MIN_SAMPLES, UNMEASURED_S, Timing


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


def test_measured_siblings_judge_a_newcomer_however_many_have_shown_nothing() -> None:
    new, fast, slow, other = (peer_id_from_key(bytes([n]) * 32) for n in range(4))
    hops = NextHop()
    hops.update(dict.fromkeys([new, other], 0.0))
    assert hops.late_s(new, 1) == UNMEASURED_S
    hops.update(dict.fromkeys([new, fast, slow, other], 0.0))
    for _ in range(9):
        hops.accounts[fast].settle(0.1, 1, 0.0)
    assert hops.late_s(new, 1) == hops.late_s(fast, 1) == 2 * ANSWER_S
    hops.accounts[other].struck(0.0)
    assert hops.late_s(other, 1) == LOOK_S
    hops.accounts[other].brought(1.0)
    assert hops.late_s(other, 1) == 2 * ANSWER_S
    for _ in range(9):
        hops.accounts[slow].settle(4.0, 1, 0.0)
    assert hops.late_s(new, 1) == MOST_TIMES * 4.0
    assert hops.late_s(slow, 1) == 6.0


@given(
    st.lists(st.floats(1e-6, 1e4), min_size=MIN_SAMPLES, max_size=60),
    st.integers(1, 64),
)
def test_late_is_clearly_more_than_usual(samples: list[float], queue: int) -> None:
    timing = taught(*samples)
    assert timing.late_s(queue) >= 1.49 * timing.expected_s(queue)


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e-12])
def test_impossible_times_are_bounded(seconds: float) -> None:
    assert taught(*[seconds] * 50).expected_s() > 0

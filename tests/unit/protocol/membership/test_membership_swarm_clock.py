"""Whose clock counts: a wrong one does not train, and one that lies decides nothing for others."""

import pytest

from protocol.limits import MAX_CLOCK_OFFSET_S
from protocol.membership.swarm_clock import SwarmClock
from protocol.pace import HEARD_S
from tests.support.protocol_examples import peer

NOON, NOW = 1.8e9, 50.0


def clock(*others_ahead_s: float, counts: int = 99) -> SwarmClock:
    """Return a clock that has heard these; of them, the first ``counts`` count."""
    counting = {peer(number) for number in range(counts)}
    made = SwarmClock(counting.__contains__)
    for number, ahead_s in enumerate(others_ahead_s):
        made.heard(peer(number), NOON + ahead_s, NOW)
    return made


@pytest.mark.parametrize(
    ("others_ahead_s", "words"),
    [
        ([-600.0], "clock is 600 s ahead of that of the only member"),
        ([600.0], "clock is 600 s behind that of the only member"),
        ([-600.0, -601.0, -599.0], "clock is 600 s ahead of those of 3 members"),
        ([-600.0, -700.0], "clock is 600 s ahead of those of 2 members"),
        ([-600.0, 0.0], ""),  # which of the two lies?
        ([600.0, 1.0, 0.0], ""),
        ([], ""),
        ([MAX_CLOCK_OFFSET_S - 1], ""),
        ([MAX_CLOCK_OFFSET_S + 1], "clock is 46 s behind"),
    ],
)
def test_a_clock_that_is_off_from_the_median_is_refused(
    others_ahead_s: list[float], words: str
) -> None:
    said = clock(*others_ahead_s).compare(NOON, NOW)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("others_ahead_s", "goes_by"),
    [
        ([-30.0], -30.0),
        ([-30.0, 10.0, 20.0], 10.0),
        ([-30.0, 20.0], 20.0),
        ([-HEARD_S], 0.0),  # the way of the message
        ([-600.0], 0.0),  # whoever lies by more than that does not lead us away
        ([], 0.0),
    ],
)
def test_below_the_limit_the_median_is_followed(
    others_ahead_s: list[float], goes_by: float
) -> None:
    made = clock(*others_ahead_s)
    made.compare(NOON, NOW)
    assert made.unix_s(NOON, NOW) == NOON + goes_by
    assert made.unix_s(NOON + 7, NOW + 7) == NOON + 7 + goes_by


def test_a_clock_that_is_set_right_is_taken_at_once() -> None:
    made = clock(-600.0)
    assert made.compare(NOON, NOW)
    assert not made.compare(NOON - 600 + 9, NOW + 9)
    assert made.unix_s(NOON - 600 + 9, NOW + 9) == NOON - 600 + 9


def test_what_does_not_count_or_has_gone_says_nothing() -> None:
    made = clock(0.0, 600.0, 600.0, counts=1)
    assert not made.compare(NOON, NOW)
    assert made.ahead_s(peer(1), NOON, NOW) == -600.0
    made = clock(600.0, 0.0)
    made.gone(peer(1))
    assert made.compare(NOON, NOW)
    made.gone(peer(0))
    assert not made.compare(NOON, NOW)
    made.heard(peer(0), 0.0, NOW)  # it does not say
    assert not made.compare(NOON, NOW)
    assert made.ahead_s(peer(0), NOON, NOW) == 0.0


def test_of_two_greetings_the_least_delayed_counts() -> None:
    made = clock()
    made.heard(peer(0), NOON, NOW)
    made.heard(peer(0), NOON, NOW + 500)
    made.heard(peer(0), NOON + 600, NOW + 600)
    assert not made.compare(NOON + 600, NOW + 600)


def test_who_trains_is_not_stopped_and_keeps_its_time() -> None:
    made = clock(-30.0)
    made.compare(NOON, NOW)
    made.settle()
    made.gone(peer(0))
    made.heard(peer(1), NOON + 600, NOW)
    assert not made.compare(NOON, NOW)
    assert made.unix_s(NOON + 1000, NOW + 1) == NOON - 29.0, "whatever is done to our own clock"

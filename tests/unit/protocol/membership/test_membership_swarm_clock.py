"""Whose clock counts: a wrong one does not train, and one that lies decides nothing for others."""

import pytest

from protocol.limits import MAX_CLOCK_OFFSET_S
from protocol.membership.swarm_clock import SwarmClock
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
        ([MAX_CLOCK_OFFSET_S + 1.4], "clock is 24 s behind"),
    ],
)
def test_a_clock_that_is_off_from_the_median_is_refused(
    others_ahead_s: list[float], words: str
) -> None:
    said = clock(*others_ahead_s).compare(NOON, NOW)
    assert words in said
    assert bool(said) == bool(words)


def test_a_clock_that_is_set_right_is_taken_at_once() -> None:
    made = clock(-600.0)
    assert made.compare(NOON, NOW)
    assert not made.compare(NOON - 600 + 9, NOW + 9)


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

"""Failure detector: 3 s suspect, 5 s dead, and our own sleep is nobody else's fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.membership.detector import DEAD_AFTER_S, SUSPECT_AFTER_S, Detector
from tests.support.protocol_examples import peer

A, B = peer(1), peer(2)


def turns(detector: Detector, times: list[float]) -> list[tuple[float, str]]:
    """Tick at the times and return (time, new health) of every transition."""
    return [(now, t.after) for now in times for t in detector.tick(now)]


def quarter_seconds(start: float, end: float) -> list[float]:
    return [start + n / 4 for n in range(1, int((end - start) * 4) + 1)]


def test_silence() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    assert turns(detector, quarter_seconds(0, 8)) == [(3.0, "suspect"), (5.0, "dead")]
    assert detector.health(A) == "dead"


@pytest.mark.parametrize(
    ("at", "health"),
    [
        (SUSPECT_AFTER_S - 0.001, "alive"),
        (SUSPECT_AFTER_S, "suspect"),
        (DEAD_AFTER_S - 0.001, "suspect"),
        (DEAD_AFTER_S, "dead"),
    ],
)
def test_bounds(at: float, health: str) -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    turns(detector, [*quarter_seconds(0, int(at - 0.5)), at])
    assert detector.health(A) == health


def test_a_heartbeat_revives_from_every_state() -> None:
    for silence in (3.0, 5.0):
        detector = Detector()
        detector.watch(A, 0.0)
        turns(detector, quarter_seconds(0, silence))
        (back,) = detector.heard(A, silence + 0.1)
        assert (back.after, detector.health(A)) == ("alive", "alive")
        assert turns(detector, quarter_seconds(silence, silence + 2.75)) == []


def test_each_transition_is_said_once_and_in_words() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    detector.watch(B, 0.0)
    for now in quarter_seconds(0, 6):
        detector.heard(B, now)
        for transition in detector.tick(now):
            assert transition.peer == A
            assert transition.words.startswith("silent for")


def test_our_own_sleep_is_not_held_against_the_others() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    turns(detector, [1.0, 2.0])
    assert turns(detector, [62.0]) == []  # stopped for a minute
    assert detector.health(A) == "alive"
    # the silence before the sleep still counts, and the clock runs again
    assert turns(detector, quarter_seconds(62, 67)) == [(63.0, "suspect"), (65.0, "dead")]


def test_heartbeats_that_waited_while_we_slept_count() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    turns(detector, [1.0])
    detector.heard(A, 60.0)
    assert turns(detector, [60.0, 61.0, 62.0]) == []


def test_a_first_watch_after_a_long_time_alone_is_no_sleep() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    detector.forget(A)
    assert detector.next_deadline() is None
    detector.watch(B, 1000.0)
    assert detector.next_deadline() == 1001.0
    assert turns(detector, quarter_seconds(1000, 1006)) == [(1003.0, "suspect"), (1005.0, "dead")]


def test_strangers_are_ignored() -> None:
    detector = Detector()
    assert detector.heard(A, 1.0) == []
    detector.forget(A)
    assert detector.health(A) is None


@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=60))
def test_a_peer_heard_within_a_second_is_never_suspected(gaps: list[float]) -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    now = 0.0
    for gap in gaps:
        now += gap
        assert detector.tick(now) == []
        detector.heard(A, now)


def test_a_silence_is_judged_when_it_is_long_enough_and_not_a_tick_later() -> None:
    """A hung replica holds its stage up until it is dead."""
    detector = Detector()
    detector.watch(A, 0.0)
    detector.heard(A, 0.4)
    seen, now = [], 0.0
    while detector.health(A) != "dead":
        deadline = detector.next_deadline()
        assert deadline is not None
        assert deadline > now, "no deadline comes twice"
        now = deadline
        seen += turns(detector, [now])
    assert seen == [(0.4 + SUSPECT_AFTER_S, "suspect"), (0.4 + DEAD_AFTER_S, "dead")]

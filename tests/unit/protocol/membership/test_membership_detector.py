"""Failure detector: 5 s dead, and our own sleep is nobody else's fault."""

import pytest

from protocol.ids import PeerId
from protocol.membership.detector import DEAD_AFTER_S, Detector
from tests.support.protocol_examples import peer

A, B = peer(1), peer(2)


def deaths(detector: Detector, times: list[float]) -> list[float]:
    """Tick at the times; return when somebody was dead."""
    return [now for now in times for _ in detector.tick(now)]


def quarter_seconds(start: float, end: float) -> list[float]:
    return [start + n / 4 for n in range(1, int((end - start) * 4) + 1)]


@pytest.mark.parametrize(
    ("at", "dead"), [(DEAD_AFTER_S - 0.001, {}), (DEAD_AFTER_S, {A: DEAD_AFTER_S})]
)
def test_bounds(at: float, dead: dict[PeerId, float]) -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    deaths(detector, quarter_seconds(0, int(at - 0.5)))
    assert detector.tick(at) == dead


def test_a_heartbeat_revives() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    detector.watch(B, 0.0)
    for now in quarter_seconds(0, 6):
        detector.heard(B, now)
        assert detector.tick(now).keys() <= {A}
    detector.heard(A, 6.1)
    assert deaths(detector, quarter_seconds(6, 10.75)) == []
    assert deaths(detector, quarter_seconds(11, 12)) == [11.25, 11.25]


def test_our_own_sleep_is_not_held_against_the_others() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    deaths(detector, [1.0, 2.0])
    assert deaths(detector, [62.0]) == []  # stopped for a minute
    # the silence before the sleep still counts, and the clock runs again
    assert deaths(detector, quarter_seconds(62, 67)) == [65.0]


def test_heartbeats_that_waited_while_we_slept_count() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    deaths(detector, [1.0])
    detector.heard(A, 60.0)
    assert deaths(detector, [60.0, 61.0, 62.0]) == []


def test_a_first_watch_after_a_long_time_alone_is_no_sleep() -> None:
    detector = Detector()
    detector.watch(A, 0.0)
    detector.forget(A)
    detector.heard(A, 1.0)
    assert detector.next_deadline() is None
    detector.watch(B, 1000.0)
    assert detector.next_deadline() == 1001.0
    assert deaths(detector, quarter_seconds(1000, 1006)) == [1005.0]


def test_a_silence_is_judged_when_it_is_long_enough_and_not_a_tick_later() -> None:
    """A hung replica holds its stage up until it is dead."""
    detector = Detector()
    detector.watch(A, 0.0)
    detector.heard(A, 0.4)
    seen, now = list[float](), 0.0
    while not seen:
        deadline = detector.next_deadline()
        assert deadline is not None
        assert deadline > now, "no deadline comes twice"
        now = deadline
        seen += deaths(detector, [now])
    assert seen == [0.4 + DEAD_AFTER_S]

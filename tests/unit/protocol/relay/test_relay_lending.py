"""A relay passes on a fifth of what is lent while its own tensors fill its line, and only then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.relay.lending import KNOWN_S, LEFT_SHARE, LOOK_S, QUEUE_S, Lending, Looked, Traffic

LINE = Traffic(2.5e6, 12.5e6)
Second = tuple[Traffic, Traffic, float]
"""Rates of our own tensors and of everything, and the seconds for which packets wait."""


def quiet(own: Traffic) -> Second:
    return own, own, 0.0


def shares(seconds: Sequence[Second], advertised: Traffic = LINE) -> list[float]:
    """Return the shares of each look, four a second."""
    lending, now, found = Lending(), 0.0, []
    own_up = own_down = up = down = 0.0
    for own, moved, queue_s in seconds:
        for _ in range(round(1 / LOOK_S)):
            own_up, own_down = own_up + LOOK_S * own.up, own_down + LOOK_S * own.down
            up, down = up + LOOK_S * moved.up, down + LOOK_S * moved.down
            now += LOOK_S
            seen = Looked(Traffic(own_up, own_down), Traffic(up, down), queue_s)
            found.append(lending.look(seen, advertised, now))
    return found


@pytest.mark.parametrize(
    ("own", "share"),
    [
        (Traffic(), 1.0),
        (Traffic(0.4 * LINE.up, 0.4 * LINE.down), 1.0),
        (Traffic(0.6 * LINE.up, 0.0), LEFT_SHARE),
        (Traffic(0.0, 0.6 * LINE.down), LEFT_SHARE),
    ],
)
def test_it_is_a_fifth_where_one_direction_is_more_than_half_full(
    own: Traffic, share: float
) -> None:
    assert shares([quiet(own)] * 5)[1:] == [share] * 19


def test_a_burst_does_not_last() -> None:
    burst = quiet(Traffic(4 * LINE.up, 0.0))
    found = shares([quiet(Traffic())] * 2 + [burst] + [quiet(Traffic())] * 3)
    assert found[7] == 1.0
    assert found[8] == LEFT_SHARE
    assert found[-1] == 1.0


def test_a_line_that_is_not_known_is_not_judged() -> None:
    assert set(shares([quiet(Traffic(1e9, 1e9))] * 3, Traffic())) == {1.0}


HOPED = Traffic(12.5e6, 12.5e6)
"""What is advertised of a line of 2.5 MB/s that was never measured."""
OWN = Traffic(1.75e6, 1.75e6)
FULL = Traffic(2.4e6, 2.4e6)


def test_a_full_line_tells_what_it_carries() -> None:
    found = shares([quiet(OWN)] * 2 + [(OWN, FULL, 2 * QUEUE_S)] * 2, HOPED)
    assert set(found[:9]) == {1.0}, "nothing queues: nobody takes anything from anybody"
    assert set(found[11:]) == {LEFT_SHARE}


def test_what_it_carries_stays_known_when_the_queue_is_gone() -> None:
    found = shares([(OWN, FULL, 2 * QUEUE_S)] * 2 + [quiet(OWN)] * 10, HOPED)
    assert set(found[8:]) == {LEFT_SHARE}, "else the others would fill it again at once"


def test_it_is_forgotten_in_the_end() -> None:
    seconds = round(KNOWN_S) + 2
    found = shares([(OWN, FULL, 2 * QUEUE_S)] * 2 + [quiet(OWN)] * seconds, HOPED)
    assert found[-1] == 1.0


def test_who_fills_a_line_for_others_keeps_lending() -> None:
    little = Traffic(0.4e6, 0.4e6)
    assert set(shares([(little, FULL, 2 * QUEUE_S)] * 5, HOPED)) == {1.0}


def test_a_moment_of_waiting_is_no_queue() -> None:
    calm, moment = quiet(OWN), (OWN, OWN, QUEUE_S / 2)
    assert set(shares([calm, moment] * 5, HOPED)) == {1.0}

"""A relay passes on a fifth of what is lent while its own tensors fill its line, and only then."""

from __future__ import annotations

import pytest

from protocol.relay.lending import LEFT_SHARE, LOOK_S, Lending, Traffic

LINE = Traffic(2.5e6, 12.5e6)


def shares(own: list[Traffic], line: Traffic = LINE) -> list[float]:
    """Look at so much traffic of our own, each time in bytes since the look before."""
    lending, up, down, found = Lending(), 0.0, 0.0, []
    for number, moved in enumerate(own):
        up, down = up + moved.up, down + moved.down
        found.append(lending.look(Traffic(up, down), line, number * LOOK_S))
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
    moved = Traffic(own.up * LOOK_S, own.down * LOOK_S)
    assert shares([moved] * 20)[1:] == [share] * 19


def test_a_burst_does_not_last() -> None:
    burst = Traffic(LINE.up, 0.0)  # a second's worth at once
    found = shares([Traffic()] * 5 + [burst] + [Traffic()] * 10)
    assert found[4] == 1.0
    assert found[5] == LEFT_SHARE
    assert found[-1] == 1.0


def test_a_line_that_is_not_known_is_not_judged() -> None:
    assert set(shares([Traffic(1e9, 1e9)] * 10, Traffic())) == {1.0}

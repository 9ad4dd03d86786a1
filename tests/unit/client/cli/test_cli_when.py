"""Times as people write them."""

from __future__ import annotations

import time

import pytest

from client.cli.terminal import when
from client.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("30m", 1800), ("1h30m", 5400), ("1.5 h", 5400), ("2D", 172800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert when.duration_s(text, "--for") == seconds


@pytest.mark.parametrize("text", ["", "h", "0s", "-1h", "1h x", "1000d", "2 weeks", "1e9h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UserError, match="not a time"):
        when.duration_s(text, "--for")


def test_a_time_of_day_is_the_next_or_the_last() -> None:
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
    assert when.moment("18:00", "x", past=False, now=noon) == noon + 6 * 3600
    assert when.moment("18:00", "x", past=True, now=noon) == noon - 18 * 3600
    assert when.moment("09:00", "x", past=False, now=noon) == noon + 21 * 3600
    assert when.moment("2026-11-21 12:00", "x", past=False) == noon
    with pytest.raises(UserError):
        when.moment("25:00", "x", past=False)

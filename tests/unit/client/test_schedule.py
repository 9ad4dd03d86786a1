"""Schedules: how they are written, what they allow, and when that changes."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.schedule import DAY_MINUTES, Schedule, parse_schedule
from tests.support.schedules import moments, spelled, windows

MONDAY = datetime(2026, 3, 2)


def at(day: int, clock: str) -> datetime:
    """A moment of the week that begins on Monday, the 2nd of March 2026."""
    hours, minutes = clock.split(":")
    return MONDAY + timedelta(days=day, hours=int(hours), minutes=int(minutes))


@pytest.mark.parametrize(
    ("text", "day", "clock", "allowed"),
    [
        ("09:00-17:00", 0, "08:59", False),
        ("09:00-17:00", 0, "09:00", True),
        ("09:00-17:00", 6, "17:00", False),
        ("22:00-07:00 mon-fri", 0, "06:00", False),  # Sunday's night is not asked for
        ("22:00-07:00 mon-fri", 5, "06:59", True),  # Friday's night runs into Saturday
        ("22:00-07:00 mon-fri", 5, "22:00", False),
        ("22:00-07:00 sun", 0, "01:00", True),  # across the end of the week
        ("00:00-24:00 sat,sun", 5, "00:00", True),
        ("8:00-9:00 fri-mon", 1, "08:30", False),
        ("8:00-9:00 fri-mon", 6, "08:30", True),
        ("8:00-9:00 mon; 20:00-21:00 Tuesday", 1, "20:30", True),
    ],
)
def test_what_a_schedule_allows(text: str, day: int, clock: str, allowed: bool) -> None:
    assert parse_schedule(text).allows(at(day, clock)) is allowed


@pytest.mark.parametrize(
    ("text", "day", "clock", "change"),
    [
        ("09:00-17:00", 0, "08:00", at(0, "09:00")),
        ("09:00-17:00", 0, "09:00", at(0, "17:00")),
        ("22:00-07:00 mon-fri", 4, "23:00", at(5, "07:00")),
        ("22:00-07:00 mon-fri", 5, "07:00", at(7, "22:00")),
        ("09:00-12:00; 12:00-15:00", 0, "10:00", at(0, "15:00")),  # one window to the eye
        ("", 0, "10:00", None),
    ],
)
def test_when_it_changes(text: str, day: int, clock: str, change: datetime | None) -> None:
    assert parse_schedule(text).next_change(at(day, clock)) == change


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("at night", "not a window"),
        ("25:00-07:00", "no 25:00"),
        ("22:00-24:01", "no 24:01"),
        ("22:60-23:00", "no 22:60"),
        ("24:00-07:00", "begins before"),
        ("07:00-07:00", "empty"),
        ("22:00-07:00 mo", "not a day"),
        ("22:00-07:00 mon-", "not a day"),
        ("22:00-07:00 monkey", "not a day"),
        ("\u0661\u0662:00-13:00", "not a window"),
        ("1:00-2:00;" * 33, "at most 32"),
    ],
)
def test_what_is_no_schedule(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_schedule(text)


schedules = st.builds(Schedule, st.lists(windows, max_size=4).map(tuple))


@given(schedules)
def test_a_schedule_reads_as_it_was_written(schedule: Schedule) -> None:
    assert parse_schedule(spelled(schedule.windows)) == schedule


@given(schedules, moments, st.integers(1, 7 * DAY_MINUTES))
def test_nothing_changes_before_the_next_change(
    schedule: Schedule, moment: datetime, minutes: int
) -> None:
    now, change = schedule.allows(moment), schedule.next_change(moment)
    later = moment + timedelta(minutes=minutes)
    if change is None:
        assert schedule.allows(later) == now
        return
    assert moment < change <= moment + timedelta(weeks=1)
    assert schedule.allows(change) != now
    assert schedule.allows(change - timedelta(seconds=1)) == now
    if later < change:
        assert schedule.allows(later) == now

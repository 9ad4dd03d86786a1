"""Schedules drawn at random, and as people write them."""

from collections.abc import Iterable
from datetime import datetime

from hypothesis import strategies as st

from client.schedule import DAY_MINUTES, DAYS, Window

windows = st.builds(
    lambda start, length, days: Window(start, start + length, tuple(sorted(days))),
    st.integers(0, DAY_MINUTES - 1),
    st.integers(1, DAY_MINUTES - 1),
    st.sets(st.integers(0, 6), min_size=1),
)
moments = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1))


def spelled(chosen: Iterable[Window]) -> str:
    """Return windows as a setting says them."""
    parts = []
    for window in chosen:
        end = window.end if window.end <= DAY_MINUTES else window.end - DAY_MINUTES
        times = (f"{minutes // 60:02}:{minutes % 60:02}" for minutes in (window.start, end))
        parts.append(f"{'-'.join(times)} {','.join(DAYS[day] for day in window.days)}")
    return "; ".join(parts)

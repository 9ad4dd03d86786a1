"""A weekly schedule of local time: ``22:00-07:00 mon-fri; 00:00-24:00 sat,sun``.

Pure. A window that ends before it begins runs into the next day and belongs to the day on which it
begins. Moments are naive datetimes of the local clock; clock changes are not handled specially.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES
MAX_WINDOWS: Final = 32
_FULL: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EXAMPLE: Final = "write 22:00-07:00 mon-fri; 00:00-24:00 sat,sun"

_WINDOW = re.compile(r"(\d{1,2}):(\d\d) ?- ?(\d{1,2}):(\d\d)(?: +(.+))?", re.A)


@dataclass(frozen=True, slots=True)
class Window:
    """From ``start`` to ``end``, in minutes after midnight, on each of ``days`` (0: Monday)."""

    start: int
    """0 to 1439."""
    end: int
    """Exclusive, above ``start`` by at most a day: above 1440 it ends on the next day."""
    days: tuple[int, ...]

    def intervals(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) in minutes of the week; the end may lie in the next week."""
        for day in self.days:
            yield day * DAY_MINUTES + self.start, day * DAY_MINUTES + self.end


@dataclass(frozen=True, slots=True)
class Schedule:
    """The allowed times; without windows always."""

    windows: tuple[Window, ...] = ()

    def allows(self, moment: datetime) -> bool:
        """Whether a moment lies in a window."""
        if not self.windows:
            return True
        minute = _minute_of_week(moment)
        return any(
            (minute - start) % WEEK_MINUTES < end - start
            for window in self.windows
            for start, end in window.intervals()
        )

    def next_change(self, moment: datetime) -> datetime | None:
        """Return the first moment after this one at which ``allows`` differs; None: never."""
        now, minute = self.allows(moment), _minute_of_week(moment)
        waits = sorted({(edge - minute) % WEEK_MINUTES or WEEK_MINUTES for edge in self._edges()})
        base = moment.replace(second=0, microsecond=0)
        for wait in waits:
            if self.allows(change := base + timedelta(minutes=wait)) != now:
                return change
        return None

    def _edges(self) -> Iterator[int]:
        for window in self.windows:
            for start, end in window.intervals():
                yield start
                yield end


def parse_schedule(text: str) -> Schedule:
    """Parse windows separated by semicolons; an empty text means always.

    Raises:
        ValueError: names the fault and shows the notation.
    """
    parts = [part.strip() for part in text.split(";")]
    windows = tuple(_window(part) for part in parts if part)
    if len(windows) > MAX_WINDOWS:
        raise ValueError(f"a schedule has at most {MAX_WINDOWS} windows")
    return Schedule(windows)


def _minute_of_week(moment: datetime) -> int:
    return moment.weekday() * DAY_MINUTES + moment.hour * 60 + moment.minute


def _window(text: str) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ValueError(f"not a window of time: {text[:40]!r} ({EXAMPLE})")
    start, end = _minutes(match[1], match[2]), _minutes(match[3], match[4])
    if start == DAY_MINUTES:
        raise ValueError("a window begins before 24:00")
    if start == end:
        raise ValueError(f"{text[:40]!r} is empty; the whole day is 00:00-24:00")
    days = _days(match[5]) if match[5] else tuple(range(7))
    return Window(start, end if end > start else end + DAY_MINUTES, days)


def _minutes(hours: str, minutes: str) -> int:
    total = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or total > DAY_MINUTES:
        raise ValueError(f"there is no {hours}:{minutes} on a clock")
    return total


def _days(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        begin = _day(first)
        end = _day(last) if dash else begin
        found |= {(begin + offset) % 7 for offset in range((end - begin) % 7 + 1)}
    return tuple(sorted(found))


def _day(name: str) -> int:
    for number, full in enumerate(_FULL):
        if len(name) >= 3 and full.startswith(name):
            return number
    raise ValueError(f"not a day: {name[:20]!r} (write {', '.join(DAYS)})")

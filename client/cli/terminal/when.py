"""Times as people write them: ``2h``, ``1h30m``, ``18:00``, ``2026-11-22 08:00``. Local clock."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from client.errors import UsageError, UserError

_PART = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_S = 366 * 86400


def duration_s(text: str, flag: str) -> float:
    """Return the seconds that ``text`` means; at least one, at most a year.

    Raises:
        UserError: it is no duration.
    """
    compact = text.strip().lower()
    parts = _PART.findall(compact)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if _PART.sub("", compact).strip() or not 1 <= seconds <= MAX_S:
        raise _mistake(flag, text, "use the form 30m, 2h or 1h30m")
    return seconds


def moment(text: str, flag: str, *, past: bool, now: float | None = None) -> float:
    """Return the Unix seconds of a time of day or a date and time.

    Args:
        past: a time of day means the last one, not the next one.

    Raises:
        UserError: it is neither.
    """
    here = datetime.fromtimestamp(time.time() if now is None else now)
    try:
        clock = datetime.strptime(text.strip(), "%H:%M")
    except ValueError:
        return _date(text, flag)
    found = here.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    if past and found > here:
        found -= timedelta(days=1)
    elif not past and found <= here:
        found += timedelta(days=1)
    return found.timestamp()


def when(text: str, flag: str, *, past: bool) -> float:
    """Return the Unix seconds that a flag means: a time of day, a date, or a duration from now on,
    in the ``past`` before now.

    Raises:
        UserError: it is none of them.
    """
    try:
        if _PART.search(text.lower()) and ":" not in text:
            seconds = duration_s(text, flag)
            return time.time() - seconds if past else time.time() + seconds
        return moment(text, flag, past=past)
    except UserError as error:
        raise _mistake(flag, text, "use the form 2h, 18:00 or 2026-11-22 08:00") from error


def clock(unix: float) -> str:
    """Return a time as people read it; with its day unless that is today."""
    then, today = datetime.fromtimestamp(unix), datetime.now().date()
    return then.strftime("%H:%M" if then.date() == today else "%Y-%m-%d %H:%M")


def _date(text: str, flag: str) -> float:
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError) as error:
        raise _mistake(flag, text, "use the form 18:00 or 2026-11-22 08:00") from error


def _mistake(flag: str, text: str, next_step: str) -> UserError:
    return UsageError(f"{flag}: not a time: {text[:40]!r}", next_step)

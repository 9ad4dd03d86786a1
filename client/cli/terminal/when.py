"""Durations as people write them, ``2h`` or ``1h30m``."""

import re

from client.errors import UsageError

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
        raise UsageError(f"{flag}: not a time: {text[:40]!r}", "use the form 30m, 2h or 1h30m")
    return seconds

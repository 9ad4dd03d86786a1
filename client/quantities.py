"""Amounts as people write them: ``512MiB``, ``2 MB/s``, ``20 Mbit/s``, ``50%``; and times.

Every parser returns a number in the base unit or raises ``ValueError`` with an example.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

_SIZE = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,6})?) ?(?P<unit>[kmgt]i?b?|b?)", re.I | re.A)
_UNITS: Final = {"": 1, "b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("i", 1024), ("ib", 1024))
}
_SIZES: Final = {
    f"{letter}{'i' if base == 1024 else ''}B": base**power
    for base, letters in ((1024, "KMGT"), (1000, "kMGT"))
    for power, letter in enumerate(letters, start=1)
}
_RATES: Final = {"bit/s": 1} | {
    f"{letter}bit/s": 1000**power for power, letter in enumerate("kMGT", start=1)
}
_BITS = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,6})?) ?(?P<unit>[kmgt]?)bit", re.I | re.A)
_PERCENT = re.compile(r"([0-9]{1,9}) ?%?", re.A)
_TIME = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(s|min|m|h|d)", re.I | re.A)
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
MOST_S: Final = 366 * 86_400
_PER_SECOND = re.compile(r" ?(/ ?s|ps)$", re.I | re.A)
_BITS_OR_BYTES = re.compile(
    r"(?P<amount>[0-9]{1,15}(\.[0-9]{1,6})? ?[kKmMgGtT]?)b ?(/ ?[sS]|[pP][sS])", re.A
)
"""A small b per second, which some write for bits and some for bytes."""


def parse_size(text: str) -> int:
    """Parse bytes: ``1048576``, ``512KiB``, ``1.5GB``; raises ``ValueError``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text[:40]!r} (write 512MiB, 1.5GB or plain bytes)")
    return int(float(match["number"]) * _UNITS[match["unit"].lower()])


def parse_rate(text: str) -> int:
    """Parse bytes per second: ``2MB``, ``2 MB/s``, ``20 Mbit/s``; raises ``ValueError``."""
    if (unclear := _BITS_OR_BYTES.fullmatch(text.strip())) is not None:
        amount = unclear["amount"]
        raise ValueError(f"{unclear[0]}: bits or bytes? write {amount}bit/s or {amount}B/s")
    amount = _PER_SECOND.sub("", text.strip())
    if (bits := _BITS.fullmatch(amount)) is not None:
        return int(float(bits["number"]) * _UNITS[bits["unit"].lower()] / 8)
    try:
        return parse_size(amount)
    except ValueError:
        raise ValueError(f"not a rate: {text[:40]!r} (write 2MB/s or 20Mbit/s)") from None


def spell_size(size_bytes: int) -> str:
    """Return bytes in the unit that is exact and shortest: ``512MiB``, ``50GB``, ``1234``."""
    return min(_spellings(size_bytes, _SIZES), key=len)


def spell_rate(bytes_per_s: int) -> str:
    """Return the rate of a line in bits, as lines are sold, in the unit that is exact and shortest:
    ``16Mbit/s``."""
    if not 0 < 8 * bytes_per_s < 10**15:
        return str(bytes_per_s)
    return min(_spellings(8 * bytes_per_s, _RATES)[1:], key=len)


def _spellings(amount: int, units: Mapping[str, int]) -> list[str]:
    exact = [(amount // size, unit) for unit, size in units.items() if amount % size == 0]
    return [str(amount), *(f"{number}{unit}" for number, unit in exact if number)]


def parse_percent(text: str) -> int:
    """Parse a percentage: ``50`` or ``50%``; raises ``ValueError``."""
    if (found := _PERCENT.fullmatch(text.strip())) is None:
        raise ValueError(f"not a percentage: {text[:40]!r} (write 50%)")
    return int(found[1])


def parse_duration(text: str) -> float:
    """Parse a time: ``30m``, ``1h30m``, from a second to a year; raises ``ValueError``."""
    seconds = sum(float(number) * _SECONDS[unit.lower()] for number, unit in _TIME.findall(text))
    if _TIME.sub("", text).strip() or not 1 <= seconds <= MOST_S:
        raise ValueError(f"not a time: {text[:40]!r} (write 30m, 2h or 1h30m)")
    return seconds


def parse_minutes(text: str) -> int:
    """Parse whole minutes: ``5``, ``5min`` or another time; raises ``ValueError``."""
    number = text.strip()
    minutes = parse_duration(f"{number}m" if number.isdecimal() else number) / 60
    if minutes % 1:
        raise ValueError(f"not whole minutes: {text[:40]!r} (write 5min)")
    return int(minutes)


def plural(number: int, one: str, many: str = "") -> str:
    """Return ``1 replica``, ``2,000 replicas``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def clock(unix: float) -> str:
    """Return a time as people read it; with its day unless that is today."""
    then, today = datetime.fromtimestamp(unix), datetime.now().date()
    return then.strftime("%H:%M" if then.date() == today else "%Y-%m-%d %H:%M")

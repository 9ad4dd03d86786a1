"""Numbers and names in words: one spelling of each quantity for all tabs."""

import math
import re
import time
from collections.abc import Iterable, Mapping

from client.views.span import Tone
from client.views.text import clean

NONE = "–"
ABSURD = "?"
MAX_SENSIBLE = 1e18
"""Larger numbers, and NaN, are shown as unknown."""
_STATES: dict[str, tuple[str, Tone]] = {
    "connecting": ("CONNECTING", "accent"),
    "matching": ("MATCHING", "accent"),
    "relaying": ("RELAYING", "good"),
    "fetching": ("FETCHING", "accent"),
    "training": ("TRAINING", "good"),
    "waiting": ("WAITING", "warn"),
    "done": ("DONE", "good"),
    "paused": ("PAUSED", "warn"),
    "stopping": ("LEAVING", "warn"),
}


def state_word(state: str) -> tuple[str, Tone]:
    """Return a node's state for the screen."""
    return _STATES.get(state, (clean(state, 16).upper(), "plain"))


def short(peer: str) -> str:
    """Return the last six characters of a peer id, as in the log."""
    return clean(peer[-6:])


def named(peer: str, names: Mapping[str, str]) -> str:
    """Return how a member is called in text: ``Anna (4AphPb)``, or its id alone.

    A name identifies nobody: two members may have one. So the end of the id always stands with it,
    and what is done, found or filtered by a member goes by its id.
    """
    name = names.get(peer, "")
    return clean(f"{name} ({peer[-6:]})") if name else short(peer)


def with_names(words: str, members: Iterable[str], names: Mapping[str, str]) -> str:
    """Return words in which the names of the ``members`` stand before the ends of their ids."""
    ends = {peer[-6:]: named(peer, names) for peer in members if names.get(peer)}
    if not ends:
        return words
    either = "|".join(map(re.escape, ends))
    return re.sub(rf"(?<!\w)(?:{either})(?!\w)", lambda found: ends[found[0]], words)


def count(value: float) -> str:
    """Return a number in at most six characters: ``987``, ``12.3k``, ``4.56M``.

    Whole numbers, such as steps, are exact up to five digits: ``2000``, not ``2.00k``.
    """
    if not abs(value) < MAX_SENSIBLE:
        return ABSURD
    if isinstance(value, int) and abs(value) < 100_000:
        return str(value)
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or unit == "T":
            break
        value /= 1000
    if unit == "" and value == int(value):
        return str(int(value))
    return f"{value:.{_decimals(value)}f}{unit}"


def size(size_bytes: float) -> str:
    """Return bytes: ``0 B``, ``12.3 kB``, ``4.56 GB``."""
    if not abs(size_bytes) < MAX_SENSIBLE:
        return ABSURD
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if abs(size_bytes) < 999.5 or unit == units[-1]:
            break
        size_bytes /= 1000
    return (
        f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.{_decimals(size_bytes)}f} {unit}"
    )


def per_s(bytes_per_s: float) -> str:
    """Return the rate of a line, in megabits as lines are sold: ``0.12 Mbit/s``, ``98 Mbit/s``."""
    if not abs(bytes_per_s) < MAX_SENSIBLE:
        return ABSURD
    megabits = 8e-6 * bytes_per_s
    if abs(megabits) >= 999.5:
        return f"{megabits / 1000:.{_decimals(megabits / 1000)}f} Gbit/s"
    return f"{megabits:.{_decimals(megabits) if megabits else 0}f} Mbit/s"


def rate(per_second: float) -> str:
    """Return microbatches per second with three digits."""
    if not abs(per_second) < MAX_SENSIBLE:
        return ABSURD
    return f"{per_second:.{_decimals(per_second)}f}" if per_second < 1000 else count(per_second)


def share(part: float) -> str:
    """Return a part of a whole in at most six characters: ``4.2 %``, ``42.0 %``, ``100 %``."""
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 99.95 else f"{percent:.1f} %"


def duration(seconds: float) -> str:
    """Return ``0.8 s``, ``45 s``, ``3 min 05 s``, ``2 h 10 min``, ``3 d 4 h``."""
    if not abs(seconds) < MAX_SENSIBLE:
        return ABSURD
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def about(seconds: float) -> str:
    """Return a duration that is not known to the second: ``45 s``, ``10 min``, ``2 h 10 min``."""
    found = duration(seconds)
    return found.partition(" min ")[0] + " min" if " min " in found else found


def clock(at: float, seconds: bool = True) -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(moment(at)))


def date(at: float) -> str:
    """Return local date and time to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment(at)))


def listed(items: list[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def moment(at: float) -> float:
    """Return a time between 1970 and 3000, also for an absurd one."""
    if math.isnan(at):
        return 0.0
    return min(max(at, 0.0), 32_503_680_000.0)  # up to the year 3000: localtime takes any of these


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0

"""The prober's side: which requests to dial somebody back are granted.

We dial a member only at the address at which we see it, at the port that it names, from a fresh
port, and never behind a relay. So nobody else can be reached through us, except those who share the
asker's address; a request is longer than all that we send for it, so even they get fewer bytes than
the asker spends. Budgets are kept for the asker's prefix, because peer ids cost nothing. State: the
budgets. Pure; the clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocol.hosts import is_global, prefix_of

BURST: Final = 4
EVERY_S: Final = 30.0
"""A prefix may ask four times at once, and then every 30 s."""
ALL_BURST: Final = 16
ALL_EVERY_S: Final = 1.0
MAX_PREFIXES: Final = 1024
_EVERYBODY: Final = ""


class Prober:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def grants(self, host: str, now: float) -> bool:
        """Whether to dial a member that we see at a host now; if so, that is counted."""
        if not is_global(host):
            return False
        own = self._level(prefix_of(host), EVERY_S, now)
        everybody = self._level(_EVERYBODY, ALL_EVERY_S, now)
        if own > BURST - 1 or everybody > ALL_BURST - 1:
            return False
        for key, level in ((prefix_of(host), own), (_EVERYBODY, everybody)):
            self._spent[key] = (level + 1, now)
            self._spent.move_to_end(key)
        while len(self._spent) > MAX_PREFIXES:
            self._spent.popitem(last=False)
        return True

    def _level(self, key: str, every_s: float, now: float) -> float:
        level, at = self._spent.get(key, (0.0, now))
        return max(0.0, level - (now - at) / every_s)

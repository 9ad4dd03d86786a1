"""The prober's side: which requests to dial somebody back are granted.

We dial a member only at the address at which we see it, at the port that it names, from a fresh
port, and never behind a relay. So nobody else can be reached through us, except those who share the
asker's address; a request is longer than all that we send for it, so even they get fewer bytes than
the asker spends. Budgets are kept for the asker's prefix, because peer ids cost nothing. State: the
budgets. Pure; the clock is passed in.
"""

from __future__ import annotations

from typing import Final

from protocol.hosts import is_global, prefix_of
from protocol.token_bucket import Rate, TokenBuckets

OF_PREFIX: Final = Rate(1 / 30, 4)
"""A prefix may ask four times at once, and then every 30 s."""
OF_ALL: Final = Rate(1.0, 16)
MAX_PREFIXES: Final = 1024


class Prober:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._dials = TokenBuckets[str](MAX_PREFIXES)

    def grants(self, host: str, now: float) -> bool:
        """Whether to dial a member that we see at a host now; if so, that is counted."""
        if not is_global(host):
            return False
        return self._dials.take({prefix_of(host): OF_PREFIX, "": OF_ALL}, now)

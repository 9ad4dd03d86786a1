"""How much of what its owner lends a relay passes on just now: a fifth while it needs its own line.

A relay that trains sends and receives tensors of its own. What it relays shares the line with them,
so while these have used more than half of the line for a second, the others get a fifth of what is
lent: a twentieth of the upload, where the owner lends a quarter. A slow peer does not bring this
about: tensors that wait for it leave the line free. State: what was moved in the last second. The
clock is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

BUSY_SHARE: Final = 0.5
LEFT_SHARE: Final = 0.2
LOOKS: Final = 5
"""So many looks tell the rate; see ``LOOK_S``."""
LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes to others and from them, in all or per second."""

    up: float = 0.0
    down: float = 0.0


class Lending:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Traffic]] = deque(maxlen=LOOKS)

    def look(self, own: Traffic, line: Traffic, now: float) -> float:
        """Return the share of what is lent that others get; to be called every ``LOOK_S``.

        Args:
            own: bytes of our own tensors until now.
            line: bytes per second that our line carries; 0: not known.
            now: monotonic seconds.
        """
        self._looks.append((now, own))
        since, before = self._looks[0]
        if now <= since:
            return 1.0
        took_s = now - since
        up_is_busy = 0 < BUSY_SHARE * line.up * took_s < own.up - before.up
        down_is_busy = 0 < BUSY_SHARE * line.down * took_s < own.down - before.down
        return LEFT_SHARE if up_is_busy or down_is_busy else 1.0

"""How much of what its owner lends a relay passes on just now: a fifth while it needs its own line.

A relay that trains sends and receives tensors of its own. What it relays shares the line with them,
so while these have used more than half of the line for a second, the others get a fifth of what is
lent: a twentieth of the upload, where the owner lends a quarter. A slow peer does not bring this
about: tensors that wait for it leave the line free.

How much a line carries shows only once it is full: then packets queue, whatever the path, and what
passes meanwhile is what it carries. An advert may say far more than that, and nobody has to believe
it. Until a queue has been seen, the advertised line counts: as long as there is none, nobody takes
anything from anybody. State: what was moved in the last second, and what the line carried when it
was full last. The clock is passed in.
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
QUEUE_S: Final = 0.01
"""Packets that wait for so long queue; what a busy machine takes to answer is shorter."""
FULL_S: Final = 0.5
"""A queue that lasts for so long tells what the line carries."""
KNOWN_S: Final = 60.0
"""For so long after the last queue: lines change, and more is not known of one that is not full."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes to others and from them, in all or per second."""

    up: float = 0.0
    down: float = 0.0

    def per_second(self, before: Traffic, took_s: float) -> Traffic:
        """Return the rates since another count of the same."""
        return Traffic((self.up - before.up) / took_s, (self.down - before.down) / took_s)


@dataclass(frozen=True, slots=True)
class Looked:
    """What is seen of our line at one moment."""

    own: Traffic
    """Bytes of our own tensors until now."""
    moved: Traffic = Traffic()
    """Bytes of all that went over the line until now, with these."""
    queue_s: float = 0.0
    """Seconds that packets wait on every path that we send on; 0: they do not, or it is unknown."""


class Lending:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Looked]] = deque(maxlen=LOOKS)
        self._full: deque[tuple[float, Traffic]] = deque(maxlen=LOOKS)
        """What had been moved at the looks since the line is full."""
        self._carries: Traffic | None = None
        self._known_until = 0.0

    def look(self, seen: Looked, advertised: Traffic, now: float) -> float:
        """Return the share of what is lent that others get; to be called every ``LOOK_S``.

        Args:
            seen: our line now.
            advertised: bytes per second that we say our line carries; 0: not known.
            now: monotonic seconds.
        """
        self._looks.append((now, seen))
        self._learn(seen, now)
        since, before = self._looks[0]
        if now <= since:
            return 1.0
        line = advertised if self._carries is None else self._carries
        own = seen.own.per_second(before.own, now - since)
        up_is_busy = 0 < BUSY_SHARE * line.up < own.up
        down_is_busy = 0 < BUSY_SHARE * line.down < own.down
        return LEFT_SHARE if up_is_busy or down_is_busy else 1.0

    def _learn(self, seen: Looked, now: float) -> None:
        """Note what the line carries, if it is full."""
        if now > self._known_until:
            self._carries = None
        if seen.queue_s < QUEUE_S:
            self._full.clear()
            return
        self._full.append((now, seen.moved))
        since, before = self._full[0]
        if now - since >= FULL_S:
            self._carries = seen.moved.per_second(before, now - since)
            self._known_until = now + KNOWN_S

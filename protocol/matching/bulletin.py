"""The bulletin of a steward: when its posting is published, and under which number.

Holds the last posting; at rest it repeats it, after a change it waits out a short gap so that a
burst of arrivals makes one record.
"""

from __future__ import annotations

import msgspec

from protocol.effects import Publish
from protocol.matching.bodies import POSTING_KIND, Posting, encode_body
from protocol.matching.context import Context
from protocol.matching.timing import MINOR_GAP_S, PUBLISH_GAP_S, REFRESH_S

LEVELS = (
    "level",
    "locked_level",
    "vacancy",
    "up_here",
    "up_there",
    "down_here",
    "down_there",
)
MINOR_PERCENT = 2


class Bulletin:
    """Publishing of one stage's posting."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._posted: Posting | None = None
        self._posted_at = float("-inf")

    def publish(self, posting: Posting, now: float) -> list[Publish]:
        """Publish if something changed (``issued_ms`` aside) or it is time to repeat it."""
        if now < self.due_at(posting):
            return []
        number = self._context.number(now)
        self._posted, self._posted_at = posting, now
        stamped = msgspec.structs.replace(posting, issued_ms=number)
        return [Publish(POSTING_KIND, str(posting.stage), number, encode_body(stamped))]

    def due_at(self, posting: Posting) -> float:
        """Return when this posting has to go out, monotonic seconds."""
        if posting == self._posted:
            return self._posted_at + REFRESH_S
        minor = self._posted is not None and _is_minor(self._posted, posting)
        return self._posted_at + (MINOR_GAP_S if minor else PUBLISH_GAP_S)


def _is_minor(old: Posting, new: Posting) -> bool:
    """Tell whether only levels changed, and those hardly: nobody has to know that at once."""
    levels = {name: getattr(new, name) for name in LEVELS}
    if msgspec.structs.replace(old, **levels) != new:
        return False
    margin = max(old.level, new.level) * MINOR_PERCENT // 100
    return all(abs(getattr(old, name) - level) <= margin for name, level in levels.items())

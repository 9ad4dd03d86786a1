"""The bulletin of a steward: when its posting is published, and under which number.

Holds the last posting; at rest it repeats it, after a change it waits out a short gap so that a
burst of arrivals makes one record.
"""

from __future__ import annotations

import msgspec

from protocol.effects import Publish
from protocol.matching.bodies import POSTING_KIND, Posting, encode_body
from protocol.matching.outlook import Outlook
from protocol.matching.timing import PUBLISH_GAP_S, REFRESH_S


class Bulletin:
    """Publishing of one stage's posting."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._posted: Posting | None = None
        self._posted_at = float("-inf")

    def publish(self, posting: Posting, now: float) -> list[Publish]:
        """Publish if something changed (``issued_ms`` aside) or it is time to repeat it."""
        if now < self.due_at(posting):
            return []
        number = self._outlook.number(now)
        self._posted, self._posted_at = posting, now
        stamped = msgspec.structs.replace(posting, issued_ms=number)
        return [Publish(POSTING_KIND, str(posting.stage), number, encode_body(stamped))]

    def due_at(self, posting: Posting) -> float:
        """Return when this posting has to go out, monotonic seconds."""
        return self._posted_at + (REFRESH_S if posting == self._posted else PUBLISH_GAP_S)

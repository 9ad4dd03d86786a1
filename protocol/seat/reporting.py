"""When a replica tells the leader of the round its ledger.

At once when nothing is in flight any more or the leader is new to us, otherwise now and then: the
leader can only use a ledger that is complete, except when it has just taken over. An unchanged
ledger is repeated more seldom while the step stays open, in case the report was lost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from protocol.ids import PeerId

REPORT_S = 0.75
REPEAT_S = 3.0


class News(NamedTuple):
    """What makes a report differ from the last one."""

    leader: PeerId
    """Of the step."""
    step: int
    revision: int
    """Rises when what is counted or in flight changes."""
    also_to: int
    """Number of next leaders that also get it."""


class LedgerReporter:
    """Holds what was reported last."""

    def __init__(self) -> None:
        self._last: News | None = None
        self.reports = 0
        """Number of the last report."""
        self.due = math.inf
        """When the next report goes out if nothing else happens, in monotonic seconds."""

    def reports_now(self, news: News, now: float, *, busy: bool) -> bool:
        """Whether a report is to be sent now; if so, it is taken for sent.

        Args:
            news: what it would say.
            now: monotonic seconds.
            busy: whether microbatches are in flight: more is to come soon.
        """
        last, changed = self._last, news != self._last
        at_once = last is None or last[:2] != news[:2]  # another leader or step
        if changed and busy:
            self.due = min(self.due, now + REPORT_S)
        if now < self.due and not at_once and not (changed and not busy):
            return False
        self._last, self.due = news, now + REPEAT_S
        self.reports += 1
        return True

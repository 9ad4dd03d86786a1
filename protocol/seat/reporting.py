"""When a replica tells the leader of the round its ledger.

At once when nothing is in flight any more or the leader is new to us, otherwise at most four times
a second: the leader can only use a ledger that is complete, except when it has just taken over. An
unchanged ledger is repeated now and then while the step stays open, in case the report was lost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from protocol.ids import PeerId
from protocol.pipeline.place import Place
from protocol.wire.messages import LedgerReport

REPORT_S = 0.25
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
    """Holds what was reported last and numbers the reports."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seq = 0
        self._last: News | None = None
        self.due = math.inf
        """When the next report goes out if nothing else happens, in monotonic seconds."""

    def report(
        self, news: News, now: float, *, done: bytes, in_flight: bytes, said: tuple[int, bytes]
    ) -> LedgerReport:
        """Return the report to send now.

        Args:
            news: as for ``is_due``.
            now: monotonic seconds.
            done: bitmap of the counted microbatches.
            in_flight: bitmap of those that we hold and have not counted.
            said: the promised attempt, and the digest of our version's state.
        """
        self._last, self.due = news, now + REPEAT_S
        self._seq += 1
        return LedgerReport(
            stage=self._place.stage,
            step=news.step,
            seq=self._seq,
            done=done,
            in_flight=in_flight,
            promised=said[0],
            state=said[1],
        )

    def is_due(self, news: News, now: float, *, busy: bool) -> bool:
        """Whether a report is to be sent now.

        Args:
            news: what it would say; most calls find nothing new, so its content is made later.
            now: monotonic seconds.
            busy: whether microbatches are in flight: more is to come soon.
        """
        last = self._last
        if last is None or last[:2] != news[:2]:  # another leader or step
            return True
        if news != last:
            if not busy:
                return True
            self.due = min(self.due, now + REPORT_S)
        return now >= self.due

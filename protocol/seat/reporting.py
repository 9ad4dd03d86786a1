"""When a replica tells the leader of the round its ledger.

At once when nothing is in flight any more or the leader is new to us, otherwise at most four times
a second: the leader can only use a ledger that is complete, except when it has just taken over. An
unchanged ledger is repeated now and then while the step stays open, in case the report was lost.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from protocol.ids import PeerId
from protocol.pipeline.ledger import to_bitmap
from protocol.pipeline.place import Place
from protocol.wire.messages import LedgerReport

REPORT_S = 0.25
REPEAT_S = 3.0


@dataclass(frozen=True, slots=True)
class Held:
    """The content of a replica's report about its step."""

    step: int
    revision: int
    """Rises when ``done`` or ``in_flight`` changes."""
    done: bytes
    """A bitmap."""
    in_flight: Set[int]
    promised: int
    state: bytes
    ready: bytes


@dataclass(frozen=True, slots=True)
class _News:
    leader: PeerId
    step: int
    revision: int
    ready: bytes
    also_to: int


class LedgerReporter:
    """Holds what was reported last and numbers the reports."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seq = 0
        self._last: _News | None = None
        self.due = math.inf
        """When the next report goes out if nothing else happens, in monotonic seconds."""

    def report(
        self,
        leader: PeerId,
        held: Held,
        now: float,
        *,
        also_to: int = 0,
    ) -> LedgerReport | None:
        """Return the report to send to ``leader`` now, or None.

        Args:
            leader: of the step.
            held: the content of the report.
            now: monotonic seconds.
            also_to: number of next leaders that also get it.
        """
        news = _News(leader, held.step, held.revision, held.ready, also_to)
        if not self._is_due(news, now, busy=bool(held.in_flight)):
            return None
        self._last, self.due = news, now + REPEAT_S
        self._seq += 1
        per_step = self._place.per_step
        return LedgerReport(
            stage=self._place.stage,
            step=held.step,
            seq=self._seq,
            done=held.done,
            in_flight=to_bitmap(held.in_flight, held.step, per_step),
            promised=held.promised,
            state=held.state,
            ready=held.ready,
        )

    def _is_due(self, news: _News, now: float, *, busy: bool) -> bool:
        last = self._last
        if last is None or (last.leader, last.step) != (news.leader, news.step):
            return True
        if news != last:
            if not busy:
                return True
            self.due = min(self.due, now + REPORT_S)
        return now >= self.due

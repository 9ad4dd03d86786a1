"""What our audits came to: since the node started, today, and by member; kept over restarts.

Its own account, for its owner: whom this volunteer charges is decided by ``protocol.seat.auditing``
from its own records.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

from msgspec.structs import replace

from client.control.snapshot import AuditCounts
from client.store.persisted import Persisted
from client.store.records import MAX_MEMBERS, AuditedMember, KeptAudits
from protocol.audit.record import Grade
from protocol.ids import PeerId
from protocol.seat.effects import Audited, Contributions

MAX_WORDS = 200


class AuditLog:
    """See the module's docstring.

    Args:
        path: the file; an unreadable one counts as empty. None: nothing is kept.
        today: returns the day of the local clock.
    """

    def __init__(self, path: Path | None = None, today: Callable[[], date] = date.today) -> None:
        self._today = today
        self._file = Persisted(path, KeptAudits) if path else None
        kept = (self._file.peek() if self._file else None) or KeptAudits(today())
        self._day, self._contributions, self._tally = kept.day, kept.contributions, kept.today
        self._members = {PeerId(one.peer): one for one in kept.members}
        self.contributions = 0
        """Of others, in steps that were closed here since the node started."""
        self.since_start = AuditCounts()

    def note(self, news: Audited | Contributions) -> None:
        """Count what a seat of ours tells."""
        self._turn()
        if isinstance(news, Contributions):
            self.contributions += news.count
            self._contributions += news.count
            return
        self.since_start = _with(self.since_start, news.grade)
        self._tally = _with(self._tally, news.grade)
        known = self._members.pop(news.member, AuditedMember(news.member))
        fault = known.fault
        if news.grade not in (None, Grade.AGREES):
            fault = f"stage {news.stage}, step {news.step}: {news.words}"[:MAX_WORDS]
        self._members[news.member] = AuditedMember(
            news.member, _with(known.tally, news.grade), fault
        )
        if len(self._members) > MAX_MEMBERS:
            del self._members[next(iter(self._members))]

    def kept(self) -> KeptAudits:
        """Return what the file holds."""
        self._turn()
        members = tuple(self._members.values())
        return KeptAudits(self._day, self._contributions, self._tally, members)

    def save(self) -> None:
        """Write the file."""
        if self._file is not None:
            self._file.keep(self.kept())

    def _turn(self) -> None:
        """Begin a new day, if it is one; a clock that is set back begins one, too."""
        if (today := self._today()) != self._day:
            self._day, self._contributions, self._tally = today, 0, AuditCounts()


def _with(tally: AuditCounts, grade: Grade | None) -> AuditCounts:
    if grade is None:
        return replace(tally, unchecked=tally.unchecked + 1)
    if grade is Grade.AGREES:
        return replace(tally, agree=tally.agree + 1)
    return replace(tally, disagree=tally.disagree + 1)

"""What our audits came to since the node started, in all and by member.

Its own account, for its owner: whom this volunteer charges is decided by ``protocol.seat.auditing``
from its own records.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from msgspec.structs import replace

from client.control.snapshot import AuditCounts
from protocol.audit.record import Grade
from protocol.ids import PeerId
from protocol.rounds.effects import Contributions
from protocol.seat.effects import Audited

MAX_WORDS: Final = 200
MAX_MEMBERS: Final = 256
"""Members whose audits are counted; the one that was audited longest ago is forgotten."""


class OfMember(NamedTuple):
    """Our audits of one member."""

    results: AuditCounts = AuditCounts()
    fault: str = ""
    """The newest result that did not agree, in words; empty: there was none."""


class AuditLog:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.contributions = 0
        """Of others, in steps that were closed here."""
        self.results = AuditCounts()
        self.members: OrderedDict[PeerId, OfMember] = OrderedDict()

    def note(self, news: Audited | Contributions) -> None:
        """Count what a seat of ours tells."""
        if isinstance(news, Contributions):
            self.contributions += news.count
            return
        self.results = _with(self.results, news.grade)
        known = self.members.pop(news.member, OfMember())
        fault = known.fault
        if news.grade not in (None, Grade.AGREES):
            fault = f"stage {news.stage}, step {news.step}: {news.words}"[:MAX_WORDS]
        self.members[news.member] = OfMember(_with(known.results, news.grade), fault)
        if len(self.members) > MAX_MEMBERS:
            self.members.popitem(last=False)


def _with(results: AuditCounts, grade: Grade | None) -> AuditCounts:
    if grade is None:
        return replace(results, unchecked=results.unchecked + 1)
    if grade is Grade.AGREES:
        return replace(results, agree=results.agree + 1)
    return replace(results, disagree=results.disagree + 1)
